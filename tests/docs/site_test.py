"""Opens the site of `make docs` in headless Chromium: no page of these asks the network for anything or is wider than its
screen, and the search finds a function, also where the site is opened from files.

usage: site_test.py SITE SCREENSHOTS   keeps pictures of the pages if SCREENSHOTS is not empty

Exits with 77 if there is no site or no Chromium.
"""
import base64
import functools
import http.server
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli/watch"))
from page_test import CHROMIUM, SKIPPED, Browser  # noqa: E402

PAGES = ["index", "docs/guides/data_parallel", "docs/tutorials/first_model", "docs/tutorials/from_a_python_script",
         "docs/reference/headers/accelerator", "docs/reference/options", "docs/reference/errors"]
WIDTHS = {1280: 900, 390: 844}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def look(page, address, screenshots):
    for name in PAGES:
        for width, height in WIDTHS.items():
            page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
            page.call("Page.navigate", url=f"{address}/{name}.html")
            page.wait_for(f"document.readyState == 'complete' && location.href.endsWith('{name}.html') && innerWidth == {width}")
            scrolled = page.run("document.documentElement.scrollWidth")
            assert scrolled <= width, f"{name} is {scrolled} wide on a screen of {width}"
            if screenshots:
                data = page.call("Page.captureScreenshot", format="png")["data"]
                Path(screenshots, f"{Path(name).name}_{width}.png").write_bytes(base64.b64decode(data))


def search(page, address):
    page.call("Page.navigate", url=f"{address}/index.html?q=gather_for_metrics")
    page.wait_for("document.querySelector('.md-search-result__link[href*=\"#Accelerator.gather_for_metrics\"]')")
    print("found", page.run("document.querySelector('.md-search-result__meta').innerText"), "in", address.partition(":")[0])


def main():
    site, screenshots = Path(sys.argv[1]).resolve(), sys.argv[2]
    if not CHROMIUM or not (site / "index.html").exists():
        print("no Chromium, or no site: run make docs")
        return SKIPPED
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        browser = Browser(Path(directory) / "profile")
        try:
            page = browser.page()
            address = f"http://127.0.0.1:{server.server_port}"
            look(page, address, screenshots)
            search(page, address)
            search(page, site.as_uri())
            foreign = [url for url in page.requests if not url.startswith((address, site.as_uri(), "data:", "about:", "blob:"))]
            assert not foreign, foreign
        finally:
            browser.close()
    return 0


sys.exit(main())
