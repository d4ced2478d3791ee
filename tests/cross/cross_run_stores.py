"""Reads runs of our MLflow, DVCLive and Trackio trackers with these packages.

usage: python cross_run_stores.py mlflow|dvclive|trackio WRITE_RUN_STORES
Exits with 1 if anything differs, with 77 if the package is missing.
"""
import base64
import contextlib
import importlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

tool, program = sys.argv[1:3]
CONFIG = {"lr": 1e-5, "amp": True, "note": "a: 'b'\n\u00fc"}
TEXT = "two\nlines \u2713"
LOSSES = [(2 * i, 1.0 / (i + 3)) for i in range(1500)]
WHOLES = [(2 * i, i) for i in range(1500)]
LAST_STEP = 3000
COLUMNS = ["name", "score", "right"]
ROWS = [["first", 0.5, True], ["second", 2, None], ["th\u00efrd", -1e300, False]]
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
folder = Path(tempfile.mkdtemp())
os.environ["TRACKIO_DIR"] = str(folder / "trackio")


def write(**variables):
    command = [program, tool] + ([str(folder / "live")] if tool == "dvclive" else [])
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, **variables})


def check_image(content, number):
    """Compares a PNG file with one of the two images."""
    import numpy
    from PIL import Image
    values = (7 * numpy.arange(2 * 3 * 4 * 5) % 256).astype(numpy.uint8).reshape(2, 3, 4, 5)
    assert numpy.array_equal(numpy.asarray(Image.open(io.BytesIO(content))), values[number].transpose(1, 2, 0)), number


def check_mlflow_client(uri, infinity):
    from mlflow import MlflowClient, artifacts
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("cross")
    run, = client.search_runs([experiment.experiment_id])
    run_id = run.info.run_id
    assert run.info.status == "FINISHED" and run.info.run_name == "first", run.info
    assert run.info.start_time == 1700000000500, run.info
    assert run.data.params == {name: str(value) for name, value in CONFIG.items()}, run.data.params
    tags = run.data.tags
    assert tags["team"] == "vision" and tags["mlflow.note.content"] == "why", tags
    for name, points in ("train/loss", LOSSES), ("whole", WHOLES):
        history = client.get_metric_history(run_id, name)
        assert sorted((each.step, each.value) for each in history) == points, name
        assert sorted(each.timestamp for each in history) == [1700000001000 + 1000 * i for i in range(1500)], name
    assert run.data.metrics["whole"] == 1499.0 and run.data.metrics["inf"] == infinity, run.data.metrics
    client.log_metric(run_id, "later", 1.0)

    def read(path):
        # The directory differs from that of the previous store.
        target = tempfile.mkdtemp(dir=folder)
        return Path(artifacts.download_artifacts(
            run_id=run_id, artifact_path=path, dst_path=target, tracking_uri=uri)).read_bytes()

    assert sorted(each.path for each in client.list_artifacts(run_id)) == ["curve.svg", "images", "results.json"]
    assert read("curve.svg") == b"<svg/>"
    assert json.loads(read("results.json")) == {"columns": COLUMNS, "data": ROWS}
    for number in range(2):
        check_image(read(f"images/val/out/{LAST_STEP}_{number}.png"), number)


def check_mlflow_page(uri, infinity):
    """Makes the requests that MLflow's page makes to show a run."""
    def get(path, /, **query):
        with urllib.request.urlopen(f"{uri}/{path}?{urllib.parse.urlencode(query)}", timeout=60) as answer:
            return answer.read()

    def post(path, content):
        request = urllib.request.Request(
            f"{uri}/ajax-api/2.0/mlflow/{path}", json.dumps(content).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    assert b'id="root"' in get("") and b"<script" in get("")
    experiments = {each["name"]: each["experiment_id"] for each in
                   post("experiments/search", {"max_results": 100})["experiments"]}
    run, = post("runs/search", {"experiment_ids": [experiments["cross"]]})["runs"]
    info, data = run["info"], run["data"]
    assert (info["run_name"], info["status"], int(info["start_time"])) == ("first", "FINISHED", 1700000000500), info
    assert {each["key"]: each["value"] for each in data["params"]} == {
        name: str(value) for name, value in CONFIG.items()}, data
    tags = {each["key"]: each["value"] for each in data["tags"]}
    assert tags["team"] == "vision" and tags["mlflow.note.content"] == "why", tags
    latest = {each["key"]: (float(each["value"]), int(each["step"])) for each in data["metrics"]}
    assert latest["whole"] == (1499, 2998) and latest["inf"] == (infinity, LAST_STEP), latest
    history = json.loads(get("ajax-api/2.0/mlflow/metrics/get-history", run_uuid=info["run_id"], metric_key="train/loss",
                             max_results=25000))["metrics"]
    assert sorted((int(each["step"]), each["value"]) for each in history) == LOSSES
    assert get("get-artifact", run_uuid=info["run_id"], path="curve.svg") == b"<svg/>"
    for number in range(2):
        check_image(
            get("get-artifact", run_uuid=info["run_id"], path=f"images/val/out/{LAST_STEP}_{number}.png"), number)


@contextlib.contextmanager
def mlflow_server(store):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / f"server-{port}.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--backend-store-uri", store,
             "--artifacts-destination", str(folder / "served"), "--workers", "1"],
            stdout=output, stderr=subprocess.STDOUT)
    uri = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(uri + "/health", timeout=5).read()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
        yield uri
    finally:
        server.terminate()
        server.wait()


def check_mlflow():
    for store, infinity in (str(folder / "mlruns"), float("inf")), (f"sqlite:///{folder}/runs.db", sys.float_info.max):
        write(MLFLOW_TRACKING_URI=store)
        check_mlflow_client(store, infinity)
        with mlflow_server(store) as uri:
            check_mlflow_page(uri, infinity)
    with mlflow_server(f"sqlite:///{folder}/server.db") as uri:
        write(MLFLOW_TRACKING_URI=uri)
        check_mlflow_client(uri, sys.float_info.max)
        check_mlflow_page(uri, sys.float_info.max)


def check_dvclive():
    from dvc_render.image import ImageRenderer
    from dvclive import Live, report
    from dvclive.serialize import load_yaml
    from dvclive.utils import parse_json, parse_tsv
    write()
    live = folder / "live"
    plots = live / "plots"
    rows = {name: parse_tsv(plots / "metrics" / f"{name}.tsv") for name in ("train/loss", "whole", "inf", "text")}
    assert [(int(row["step"]), float(row["loss"])) for row in rows["train/loss"]] == LOSSES
    assert [(int(row["step"]), int(row["whole"])) for row in rows["whole"]] == WHOLES
    assert rows["inf"] == [{"step": str(LAST_STEP), "inf": "inf"}], rows["inf"]
    assert rows["text"] == [{"step": str(LAST_STEP), "text": TEXT}], rows["text"]
    latest = parse_json(live / "metrics.json")
    assert latest == {"train": {"loss": LOSSES[-1][1]}, "whole": 1499, "inf": "inf", "text": TEXT, "step": LAST_STEP}, latest
    assert load_yaml(live / "params.yaml") == CONFIG
    # What DVCLive's report shows.
    shown = {each.name: each.datapoints for each in report.get_scalar_renderers(plots / "metrics")}
    assert len(shown["static/train/loss"]) == 1500, list(shown)
    assert report.get_params_renderers(live / "params.yaml")[0].datapoints == [CONFIG]
    assert report.get_metrics_renderers(live / "metrics.json")[0].datapoints == [latest]
    images = {each.name: each.datapoints[0] for each in report.get_image_renderers(plots / "images")}
    assert sorted(images) == [f"val/out/{number}/{LAST_STEP}.png" for number in range(2)], list(images)
    for number, image in enumerate(images[name] for name in sorted(images)):
        check_image(base64.b64decode(image[ImageRenderer.SRC_FIELD].partition(",")[2]), number)
    os.chdir(folder)
    assert Live(str(live), resume=True, save_dvc_exp=False, dvcyaml=None, report=None).step == LAST_STEP + 1


def check_trackio():
    from trackio.sqlite_storage import SQLiteStorage
    from trackio.table import Table
    from trackio.utils import MEDIA_DIR
    write()
    assert SQLiteStorage.get_projects() == ["cross"], SQLiteStorage.get_projects()
    assert SQLiteStorage.get_runs("cross") == ["first"], SQLiteStorage.get_runs("cross")
    logs = SQLiteStorage.get_logs("cross", "first")
    for name, points in ("train/loss", LOSSES), ("whole", WHOLES):
        assert [(row["step"], row[name]) for row in logs if name in row] == points, name
    assert logs[0]["timestamp"].startswith("2023-11-14T22:13:21.000000"), logs[0]
    last = {name: value for row in logs if row["step"] == LAST_STEP for name, value in row.items()}
    assert (last["inf"], last["text"]) == (float("inf"), TEXT), last
    for number in range(2):
        image = last[f"val/out/{number}"]
        assert image["_type"] == "trackio.image", image
        check_image((MEDIA_DIR / image["file_path"]).read_bytes(), number)
    assert last["results"]["_type"] == Table.TYPE
    assert last["results"]["_value"] == Table(columns=COLUMNS, data=ROWS).data, last["results"]
    assert last["weights"] == {"_type": "trackio.histogram", "bins": [-1, 0, 0.5, 2], "values": [3, 1, 6]}, last["weights"]
    assert last["curve"]["_type"] == "trackio.html", last["curve"]
    assert (MEDIA_DIR / last["curve"]["file_path"]).read_text() == "<svg/>"
    config = SQLiteStorage.get_run_config("cross", "first")
    assert {name: config[name] for name in CONFIG} == CONFIG and config["amp"] is True, config


try:
    importlib.import_module(tool)
except ImportError as missing:
    print(f"skipped: this Python has no package {missing.name}")
    sys.exit(77)
{"mlflow": check_mlflow, "dvclive": check_dvclive, "trackio": check_trackio}[tool]()
print("as written")
