"""Runs of our MLflow, DVCLive and Trackio trackers, read by these packages.

usage: python cross_run_stores.py mlflow|dvclive|trackio WRITE_RUN_STORES
Ends with 1 if anything differs, with 77 if the package is missing.
"""
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

tool, program = sys.argv[1:3]
NOTE = "a: 'b'\n\u00fc"
LOSSES = [(2 * i, 1.0 / (i + 3)) for i in range(1500)]
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
folder = Path(tempfile.mkdtemp())
os.environ["TRACKIO_DIR"] = str(folder / "trackio")


def write(**variables):
    command = [program, tool] + ([str(folder / "live")] if tool == "dvclive" else [])
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, **variables})


def check_mlflow(uri, infinity):
    from mlflow import MlflowClient
    write(MLFLOW_TRACKING_URI=uri)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("cross")
    run, = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "first", run.info
    assert run.info.start_time == 1700000000500, run.info
    assert run.data.params == {"lr": "1e-05", "amp": "True", "note": NOTE}, run.data.params
    tags = run.data.tags
    assert tags["team"] == "vision" and tags["mlflow.note.content"] == "why", tags
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((each.step, each.value) for each in history) == LOSSES
    assert history[0].timestamp == 1700000001000, history[0]
    assert run.data.metrics["whole"] == 1499.0 and run.data.metrics["inf"] == infinity, run.data.metrics
    client.log_metric(run.info.run_id, "later", 1.0)
    assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["curve.svg"]


def check_mlflow_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--backend-store-uri",
         f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "served"), "--workers", "1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    uri = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(uri + "/health", timeout=5).read()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, "the server does not start"
                time.sleep(0.2)
        check_mlflow(uri, sys.float_info.max)
    finally:
        server.terminate()
        server.wait()


def check_dvclive():
    from dvclive.serialize import load_yaml
    from dvclive.utils import parse_json, parse_tsv
    write()
    live = folder / "live"
    rows = parse_tsv(live / "plots/metrics/train/loss.tsv")
    assert [(int(row["step"]), float(row["loss"])) for row in rows] == LOSSES
    latest = parse_json(live / "metrics.json")
    assert latest["whole"] == 1499 and latest["inf"] == "inf" and latest["step"] == 3000, latest
    assert load_yaml(live / "params.yaml") == {"lr": 1e-5, "amp": True, "note": NOTE}


def check_trackio():
    from trackio.sqlite_storage import SQLiteStorage
    write()
    assert SQLiteStorage.get_projects() == ["cross"], SQLiteStorage.get_projects()
    logs = SQLiteStorage.get_logs("cross", "first")
    assert [(row["step"], row["train/loss"]) for row in logs if "train/loss" in row] == LOSSES
    assert logs[-1]["inf"] == float("inf"), logs[-1]
    config = SQLiteStorage.get_run_config("cross", "first")
    assert config["lr"] == 1e-5 and config["amp"] is True and config["note"] == NOTE, config


try:
    importlib.import_module(tool)
except ImportError as missing:
    print(f"skipped: this Python has no package {missing.name}")
    sys.exit(77)
if tool == "mlflow":
    check_mlflow(str(folder / "mlruns"), float("inf"))
    check_mlflow(f"sqlite:///{folder}/runs.db", sys.float_info.max)
    check_mlflow_server()
else:
    {"dvclive": check_dvclive, "trackio": check_trackio}[tool]()
print("as written")
