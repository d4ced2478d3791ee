"""Reads the files of our TensorBoard tracker with TensorBoard's own reader.

usage: python cross_tensorboard.py WRITE_TRACKER_RUNS
Exits with 1 if anything differs, with 77 if a package is missing.
"""
import io
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy
    import yaml
    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2
except ImportError as missing:
    print(f"skipped: this Python has no package {missing.name}")
    sys.exit(77)

BEGIN = 1_700_000_000.25


def load(directory):
    # 0 keeps all entries of a kind.
    kinds = ["scalars", "images", "histograms", "tensors", "compressedHistograms"]
    reader = EventAccumulator(str(directory), size_guidance={kind: 0 for kind in kinds})
    reader.Reload()
    return reader


def check_scalars(reader, expected):
    assert sorted(reader.Tags()["scalars"]) == ["done", "train/loss", "whole"], reader.Tags()
    for column, name in enumerate(["train/loss", "whole", "done"], 1):
        events = reader.Scalars(name)
        assert [event.step for event in events] == [row[0] for row in expected], name
        assert [event.wall_time for event in events] == [BEGIN + i for i in range(len(expected))], name
        for event, row in zip(events, expected):
            value = math.inf if row[column] == "inf" else row[column]
            assert event.value == float(numpy.float32(value)), (name, event, value)


def check_texts(reader):
    def text(name):
        (event,) = reader.Tensors(name)
        assert event.step == 900, event
        (value,) = event.tensor_proto.string_val
        return value.decode()

    assert text("text/text_summary") == "two\nlines \u2713"
    assert text("long/text_summary") == "x" * 100_000
    assert text("results/text_summary").splitlines() == [
        "| name | score | right |", "| --- | --- | --- |",
        "| first | 0.5 | True |", "| second | 2 | None |", "| th\u00efrd | -1e+300 | False |"]


def check_image(reader):
    (event,) = reader.Images("val/out")
    assert (event.step, event.width, event.height) == (900, 10, 4), event
    pixels = numpy.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
    values = (7 * numpy.arange(2 * 3 * 4 * 5) % 256).astype(numpy.uint8).reshape(2, 3, 4, 5)
    expected = numpy.concatenate(list(values), axis=2).transpose(1, 2, 0)
    assert numpy.array_equal(pixels, expected)


def check_histogram(reader):
    (event,) = reader.Histograms("weights")
    found = event.histogram_value
    assert event.step == 900
    assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (-0.75, 1.5, 10, 4.5, 11.25), found
    assert list(found.bucket_limit) == [-1, 0, 0.5, 2], found
    assert list(found.bucket) == [0, 3, 1, 6], found


def check_parts(run):
    for part, value in (("both_a", 1.5), ("both_b", 2.0)):
        (event,) = load(run / part).Scalars("both")
        assert (event.step, event.value) == (900, value), event


def check_hyperparameters(run, config):
    (file,) = run.glob("*/hparams.yml")
    assert yaml.safe_load(file.read_text()) == config, file.read_text()
    reader = load(file.parent)

    def record(tag):
        content = reader.SummaryMetadata(tag).plugin_data.content
        return plugin_data_pb2.HParamsPluginData.FromString(content)

    start = record("_hparams_/session_start_info").session_start_info
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert values == {name: value if isinstance(value, str) else float(value) for name, value in config.items()}, values
    assert start.start_time_secs == BEGIN
    infos = record("_hparams_/experiment").experiment.hparam_infos
    assert [info.name for info in infos] == [
        "learning_rate", "epochs", "large", "amp", "model", "empty"], infos
    assert record("_hparams_/session_end_info").session_end_info.status == 1


def main():
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.argv[1], directory], check=True)
        expected = json.loads((Path(directory) / "expected.json").read_text())
        run = Path(directory) / "logs" / "a project"
        reader = load(run)
        check_scalars(reader, expected["scalars"])
        check_texts(reader)
        check_image(reader)
        check_histogram(reader)
        check_parts(run)
        check_hyperparameters(run, expected["config"])
    print("TensorBoard reads everything that was logged")


if __name__ == "__main__":
    main()
