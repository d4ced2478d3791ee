#!/usr/bin/env python3
"""Opens the page of `accelerate-cpp watch --web` and a report in headless Chromium, and uses them.

usage: page_test.py TOOL PAGE_RUNS [SCREENSHOTS]; exits with 77 if there is no Chromium.
"""
import base64
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

SKIPPED = 77
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MOST_SECONDS = 120


class WebSocket:
    """The part of RFC 6455 that the browser's debugging protocol needs."""

    def __init__(self, address):
        host, _, path = address.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.socket = socket.create_connection((name, int(port)), MOST_SECONDS)
        self.socket.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.bytes = b""
        while b"\r\n\r\n" not in self.bytes:
            self.bytes += self.socket.recv(65536)
        head, _, self.bytes = self.bytes.partition(b"\r\n\r\n")
        assert b" 101 " in head, head

    def take(self, size):
        while len(self.bytes) < size:
            more = self.socket.recv(1 << 20)
            assert more, "the browser has gone"
            self.bytes += more
        taken, self.bytes = self.bytes[:size], self.bytes[size:]
        return taken

    def send(self, text):
        payload = text.encode()
        size = len(payload)
        head = bytes([0x81, 0x80 | (size if size < 126 else 126 if size < 1 << 16 else 127)])
        if size >= 126:
            head += struct.pack(">H" if size < 1 << 16 else ">Q", size)
        self.socket.sendall(head + bytes(4) + payload)  # a mask of zeros

    def receive(self):
        text = b""
        while True:
            first, second = self.take(2)
            size = second & 127
            if size == 126:
                size = struct.unpack(">H", self.take(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.take(8))[0]
            text += self.take(size)
            if first & 0x80:
                return text.decode()


class Browser:
    def __init__(self, profile):
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0",
             "--remote-allow-origins=*", f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True)
        for line in self.process.stderr:
            if "DevTools listening on " in line:
                address = line.split()[-1]
                break
        else:
            raise AssertionError("Chromium does not start")
        self.host = address.removeprefix("ws://").partition("/")[0]

    def page(self):
        with urllib.request.urlopen(f"http://{self.host}/json/list", timeout=MOST_SECONDS) as answer:
            pages = [each for each in json.load(answer) if each["type"] == "page"]
        return Page(pages[0]["webSocketDebuggerUrl"])

    def close(self):
        """Ends all processes of the browser, and returns when none can write to the profile any more."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.stderr.read()  # ends when the last of them has
        self.process.wait()


class Page:
    def __init__(self, address):
        self.socket = WebSocket(address)
        self.number = 0
        self.errors = []
        self.requests = []
        self.documents = []  # the document behind each request
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self.note(message)

    def note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(parameters["args"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
            self.documents.append(parameters["documentURL"])

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition):
        """Polls the page until `condition` holds."""
        met = self.run(
            f"new Promise((met) => {{ const end = performance.now() + {1000 * MOST_SECONDS};"
            f"const look = () => {{ let is = false; try {{ is = !!({condition}); }} catch (_) {{}}"
            "if (is || performance.now() > end) met(is); else setTimeout(look, 20); }; look(); })")
        assert met, f"never: {condition}; page: " + self.run("document.body.innerText")[:2000]

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.wait_for("document.documentElement.dataset.ready === 'yes'")

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)

    def color_scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, name):
        if len(sys.argv) > 3:
            data = self.call("Page.captureScreenshot", format="png")["data"]
            (Path(sys.argv[3]) / f"{name}.png").write_bytes(base64.b64decode(data))

    def tab(self, name):
        self.run(f"document.getElementById('tab-{name}').click()")
        self.wait_for(f"document.getElementById('panel').getAttribute('aria-labelledby') === 'tab-{name}'")


def status_of(address, host=None):
    request = urllib.request.Request(address, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=MOST_SECONDS) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


LAST_LOSS = "page.cards.get('loss').chart.data.datasets.find((set) => set.label === 'fast').data.at(-1).y"

MARKED_STEPS = "() => { const card = page.cards.get('loss'); return card.checkpoints(card.chart).map(({step}) => step); }"


def use_charts(page, has_stream, add_step):
    page.wait_for("[...page.cards.values()].length === 2 && [...page.cards.values()].every((card) => card.chart)")
    assert page.run("[...document.querySelectorAll('[data-figure]')].map((card) => card.dataset.figure)") == ["accuracy", "loss"]
    assert page.run(f"({MARKED_STEPS})()") == [300, 700, 300, 700]
    assert not page.run("document.getElementById('checkpoint-key').hidden")
    assert page.run("[...document.querySelectorAll('.runs .warnings')].map((button) => button.textContent)") == ["⚠ 1 warning"] * 2
    assert page.run("document.getElementById('tab-events').textContent") == "Events ⚠ 2"
    if has_stream:
        before = len(page.requests)
        add_step()
        page.wait_for(f"{LAST_LOSS} === 0.05")
        page.wait_for("document.querySelector('[data-about=\"0\"]').textContent.startsWith('step 1000,')")
        page.wait_for(f"({MARKED_STEPS})().includes(1000)")
        # The update came with the stream: no series was requested again.
        assert not [each for each in page.requests[before:] if "/api/series" in each], page.requests[before:]
    page.run("document.getElementById('log-axis').click()")
    page.wait_for("page.cards.get('loss').chart.options.scales.y.type === 'logarithmic'")
    page.run("const slider = document.getElementById('smoothing'); slider.value = 0.9; slider.dispatchEvent(new Event('input'))")
    # The raw values stay visible behind their averages.
    page.wait_for("page.cards.get('loss').chart.data.datasets.length === 4")
    page.run("page.cards.get('loss').zoomTo([100, 200])")
    page.wait_for("page.cards.get('loss').chart.data.datasets.every(({data}) => data[0].step === 100 && data.at(-1).step === 200)")
    page.run("page.cards.get('loss').zoomTo(null)")
    page.run("slider.value = 0; slider.dispatchEvent(new Event('input')); document.getElementById('log-axis').click()")
    page.wait_for("page.cards.get('loss').chart.data.datasets.length === 2")
    page.run("document.querySelector('#runs input').click()")
    page.wait_for("page.cards.get('loss').chart.data.datasets.length === 1")
    page.run("document.querySelector('#runs input').click()")
    page.wait_for("page.cards.get('loss').chart.data.datasets.length === 2")


def use_tabs(page, kind):
    if kind == "live":
        page.tab("compare")
        text = page.run("document.getElementById('panel').innerText")
        assert "last loss\t0.05 @1000" in text, text
    text = "document.getElementById('panel').innerText"
    wanted = {
        "compare": ["2.0\t0.5", "best loss", "last accuracy"],
        "media": ["fast: Figures", "plot", "weights", "4 values"],
        "system": ["cpu_percent"],
        "ranks": ["rank 1", "slowest"],
        "events": ["checkpoints/0", "<i>nearly</i> full"],
    }
    for name, phrases in wanted.items():
        page.tab(name)
        for phrase in phrases:
            assert phrase in page.run(text), (name, phrase, page.run(text))
        if name == "compare":
            assert "width" not in page.run(text), "an equal setting is shown"
        if name == "media":
            page.wait_for("[...document.querySelectorAll('#panel img')].every((image) => image.complete && image.naturalWidth > 0)")
        page.screenshot(f"{kind}-{name}")
    page.tab("charts")


def check_sizes(page, kind):
    for width, height in ((1280, 900), (390, 844)):
        page.size(width, height)
        for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")):
            page.color_scheme(scheme)
            page.wait_for(f"getComputedStyle(document.body).backgroundColor === '{paper}'")
            page.wait_for("[...page.cards.values()].every((card) => card.chart)")
            page.screenshot(f"{kind}-{width}-{scheme}")
        for tab in ("charts", "compare", "events"):
            page.tab(tab)
            scrolled = page.run("document.documentElement.scrollWidth")
            assert scrolled <= width, f"{tab} is {scrolled} wide on a screen of {width}"
        page.tab("charts")


def main():
    if not CHROMIUM:
        print("no Chromium; the page was not tested")
        return SKIPPED
    tool, page_runs = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as directory:
        runs = Path(directory) / "runs"
        writer = subprocess.Popen([page_runs, runs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        writer.stdout.readline()
        server = subprocess.Popen([tool, "watch", "--web", runs], stdout=subprocess.PIPE, text=True)
        address = server.stdout.readline().strip()
        browser = Browser(Path(directory) / "profile")
        try:
            assert status_of(address) == 200
            assert status_of(address.partition("?")[0]) == 403
            assert status_of(address, "example.com") == 403

            def add_step():
                writer.stdin.write("\n")
                writer.stdout.readline()

            report = Path(directory) / "report.html"
            subprocess.run([tool, "report", runs, "-o", report], check=True, stdout=subprocess.DEVNULL)
            page = browser.page()
            for kind, place in (("live", address), ("report", report.as_uri())):
                page.size(1280, 900)
                page.color_scheme("light")
                page.open(place)
                use_charts(page, kind == "live", add_step)
                use_tabs(page, kind)
                check_sizes(page, kind)
                assert not page.errors, page.errors
            # The live page can still make requests until the report replaces
            # it.
            asked = [each for each, by in zip(page.requests, page.documents) if by == report.as_uri()]
            assert asked[0] == report.as_uri() and all(each.startswith(("file:", "data:")) for each in asked), asked
        finally:
            browser.close()
            server.terminate()
            writer.stdin.close()
            writer.wait()
            ended = server.wait()
        assert ended == 0, ended
    return 0


if __name__ == "__main__":
    sys.exit(main())
