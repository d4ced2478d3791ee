"""Reads an offline run of our W&B tracker as wandb does, and uploads it with `wandb sync`.

The upload goes to a server in this process that keeps what it gets.

usage: python cross_wandb.py WRITE_TRACKER_RUNS
Exits with 1 if anything differs, with 77 if a package is missing.
"""
import gzip
import http.server
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import zlib
from pathlib import Path

try:
    import numpy
    import wandb
    import yaml
    from PIL import Image
    from wandb.proto import wandb_internal_pb2
except ImportError as missing:
    print(f"skipped: this Python has no package {missing.name}")
    sys.exit(77)

try:
    from wandb.sdk.internal.datastore import DataStore

    HAS_READER = True
except ImportError:
    HAS_READER = False

BEGIN = 1_700_000_000.25


def scan_by_wandb(path):
    """Yields the records with wandb's own Python reader, which only some versions have."""
    wandb._assert_is_internal_process = True
    store = DataStore()
    store.open_for_scan(str(path))
    while (record := store.scan_data()) is not None:
        yield record


def scan_by_format(path):
    """Yields the records by the format's definition."""
    data = path.read_bytes()
    assert data[:7] == b":W&B\xe1\xbe\x00", data[:7]
    place, record = 7, b""
    while place < len(data):
        left = 32768 - place % 32768
        if left < 7:
            assert not any(data[place:place + left]), place
            place += left
            continue
        checksum, length, kind = struct.unpack("<IHB", data[place:place + 7])
        fragment = data[place + 7:place + 7 + length]
        assert len(fragment) == length and zlib.crc32(fragment, zlib.crc32(bytes([kind]))) == checksum, place
        record += fragment
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def read_records(path):
    bodies = list(scan_by_format(path))
    if HAS_READER:
        assert list(scan_by_wandb(path)) == bodies
    records = [wandb_internal_pb2.Record.FromString(body) for body in bodies]
    assert [record.num for record in records] == list(range(1, len(records) + 1))
    return records


def as_tree(items):
    tree = {}
    for item in items:
        *parents, last = list(item.nested_key) or [item.key]
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = json.loads(item.value_json)
    return tree


def check_scalars(rows, scalars):
    assert len(rows) == len(scalars) + 1
    for i, (row, (step, loss, whole, done)) in enumerate(zip(rows, scalars)):
        loss = math.inf if loss == "inf" else loss
        assert row == {"train/loss": loss, "whole": whole, "done": done, "_step": step,
                       "_timestamp": BEGIN + i, "_runtime": i}, row


def check_media(row, files):
    assert row["long"] == "x" * 100_000 and row["text"] == "two\nlines \u2713"
    assert row["both"] == {"a": 1.5, "b": 2}
    assert row["weights"] == {"_type": "histogram", "values": [3, 1, 6], "bins": [-1, 0, 0.5, 2]}
    images = row["val/out"]
    assert [images[name] for name in ("_type", "width", "height", "format", "count")] == [
        "images/separated", 5, 4, "png", 2], images
    values = (7 * numpy.arange(2 * 3 * 4 * 5) % 256).astype(numpy.uint8).reshape(2, 3, 4, 5)
    for name, expected in zip(images["filenames"], values):
        assert numpy.array_equal(numpy.asarray(Image.open(files / name)), expected.transpose(1, 2, 0)), name
    table = row["results"]
    assert (table["_type"], table["ncols"], table["nrows"]) == ("table-file", 3, 3), table
    content = (files / table["path"]).read_text()
    assert table["size"] == len(content.encode())
    assert json.loads(content) == {
        "columns": ["name", "score", "right"],
        "data": [["first", 0.5, True], ["second", 2, None], ["th\u00efrd", -1e300, False]]}
    return [*images["filenames"], table["path"]]


def check_records(directory, expected):
    run_directory = directory / "wandb" / "latest-run"
    assert run_directory.resolve().name.endswith("-cross1234"), run_directory.resolve()
    records = read_records(run_directory / "run-cross1234.wandb")
    (run,) = [record.run for record in records if record.HasField("run")]
    assert (run.run_id, run.project, run.display_name, run.notes, list(run.tags)) == (
        "cross1234", "a project", "the name", "some notes", ["a", "b"]), run
    assert (run.start_time.seconds, run.start_time.nanos) == (1_700_000_000, 250_000_000), run
    config = as_tree(run.config.update)
    for record in records:
        config.update(as_tree(record.config.update))
    assert config == {"nested": {"x": 1}, **expected["config"]}, config
    rows = [as_tree(record.history.item) for record in records if record.HasField("history")]
    check_scalars(rows, expected["scalars"])
    media = check_media(rows[-1], run_directory / "files")
    assert [item.path for record in records for item in record.files.files] == media
    summary = {}
    for record in records:
        summary.update(as_tree(record.summary.update))
    assert summary == {**rows[-2], **rows[-1], "_wandb": {"runtime": 1000}}
    assert json.loads((run_directory / "files" / "wandb-summary.json").read_text()) == summary
    written = yaml.safe_load((run_directory / "files" / "config.yaml").read_text())
    assert {name: entry["value"] for name, entry in written.items() if name != "_wandb"} == config
    assert records[-1].exit.runtime == 1000 and records[-1].HasField("exit")
    return config, rows, media


class Server(http.server.ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs, self.history, self.uploads = [], {}, {}

    def handle_error(self, *_):
        """Ignores clients that disconnect without notice."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    """The part of W&B's server that `wandb sync` uses."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def answer(self, content):
        content = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        self.answer({})

    def do_PUT(self):
        self.server.uploads[urllib.parse.unquote(self.path.removeprefix("/upload/"))] = self.body()
        self.answer({})

    def do_POST(self):
        body = self.body()
        if self.path.endswith("/file_stream"):
            history = json.loads(body).get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            for i, line in enumerate(history["content"], history["offset"]):
                self.server.history[i] = json.loads(line)
        answer = {}
        if self.path.endswith("/graphql"):
            request = json.loads(body)
            answer = self.answer_query(request["query"], request.get("variables") or {})
        self.answer(answer)

    def answer_query(self, query, variables):
        if "mutation UpsertBucket" in query:
            self.server.runs.append(variables)
            bucket = {"id": "run", "name": variables.get("name"), "displayName": "", "config": "{}", "sweepName": None,
                      "historyLineCount": 0,
                      "project": {"id": "project", "name": variables.get("project"), "entity": {"id": "us", "name": "us"}}}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if "mutation CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.server.url}/upload/{urllib.parse.quote(name)}"}
                     for name in variables["files"]]
            return {"data": {"createRunFiles": {"runID": "run", "uploadHeaders": [], "files": files}}}
        return {"data": {}}


def flat(row):
    """Normalises the order and spelling of numbers, which `wandb sync` changes."""
    return json.loads(json.dumps(row), parse_int=float)


def check_sync(directory, config, rows, media):
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = directory / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment.update(
        WANDB_BASE_URL=server.url, WANDB_API_KEY="0" * 40, WANDB_ERROR_REPORTING="false", HOME=str(home),
        WANDB_CONFIG_DIR=str(home), WANDB_CACHE_DIR=str(home), WANDB_DATA_DIR=str(home))
    run = (directory / "wandb" / "latest-run").resolve()
    result = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", str(run)], cwd=directory, env=environment, capture_output=True, text=True,
        timeout=240)
    server.shutdown()
    assert result.returncode == 0, result.stdout + result.stderr
    assert (run / "run-cross1234.wandb.synced").exists(), result.stdout + result.stderr
    uploaded = server.runs[0]
    assert (uploaded["name"], uploaded["project"], uploaded["displayName"], uploaded["notes"], uploaded["tags"]) == (
        "cross1234", "a project", "the name", "some notes", ["a", "b"]), uploaded
    found = {name: entry["value"] for name, entry in json.loads(server.runs[-1]["config"]).items()
             if not name.startswith("_") and name != "wandb_version"}
    assert found == config, found
    assert [flat(server.history[i]) for i in range(len(server.history))] == [flat(row) for row in rows]
    for name in media:
        assert server.uploads[name] == (run / "files" / name).read_bytes(), name


def main():
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        subprocess.run([sys.argv[1], str(directory)], check=True)
        expected = json.loads((directory / "expected.json").read_text())
        written = check_records(directory, expected)
        # Versions with a Python reader also upload with it, and require more of
        # the server.
        if not HAS_READER:
            check_sync(directory, *written)
    print("wandb reads everything that was logged" + ("" if HAS_READER else ", and uploads it"))


if __name__ == "__main__":
    main()
