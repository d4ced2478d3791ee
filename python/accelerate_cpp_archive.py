"""The archives that accelerate_cpp_export.py writes.

They are those of torch.export.save(), with what a program alone does not say (extra/accelerate.json), and a second graph
(extra/accelerate_eval.json) if eval() changes more than dropout and batch normalisation. torch.export.load() reads the first
graph: it takes all files in models/ for programs of their own, with weights and examples of their inputs.
"""
import json
import os
import re
import zipfile

import torch
from torch._export.serde import serialize
from torch.export.pt2_archive import _package

# Arguments through which modules tell operators whether they train: accelerate.cpp changes them in eval(). src/exported/modes.cpp
# has the same table.
TRAINING_ARGUMENTS = {
    **dict.fromkeys(("alpha_dropout", "alpha_dropout_", "dropout", "dropout_", "feature_alpha_dropout", "feature_alpha_dropout_",
                     "feature_dropout", "feature_dropout_", "gru", "lstm", "native_dropout", "rnn_relu", "rnn_tanh"), "train"),
    **dict.fromkeys(("batch_norm", "rrelu", "rrelu_"), "training"),
}
ALIGNMENT = 64


def _save(program, path, weights, **options):
    """Saves a program as torch.export.save() does, which also pickles all weights, for nothing. Without weights, none is read:
    they may be larger than memory and disk.
    """
    left_out = set() if weights else {tensor.untyped_storage().data_ptr() for tensor in program.state_dict.values()}
    bytes_of, pickled = _package._get_raw_tensor_bytes, serialize.serialize_torch_artifact
    _package._get_raw_tensor_bytes = lambda tensor: b"" if tensor.untyped_storage().data_ptr() in left_out else bytes_of(tensor)
    serialize.serialize_torch_artifact = lambda values, *protocol: (
        b"" if isinstance(values, dict) and values.keys() == program.state_dict.keys() else pickled(values, *protocol))
    try:
        torch.export.save(program, path, **options)
    finally:
        _package._get_raw_tensor_bytes, serialize.serialize_torch_artifact = bytes_of, pickled


def write_archive(training, evaluation, path, facts, weights):
    """Writes the archive: that of torch.export.save(), with shorter stack traces and the second graph if it differs."""
    parts = [f"{path}.{mode}.pt2" for mode in ("eval", "train")]
    try:
        _save(evaluation, parts[0], weights=False)
        _save(training, parts[1], weights, extra_files={"accelerate.json": json.dumps(facts)})
        as_evaluated = _program_in(parts[0])[1]
        entry, as_trained = _program_in(parts[1])
        is_one_graph = _evaluated(as_trained) == _evaluated(as_evaluated)
        root, stem = entry.split("/")[0], os.path.basename(path).removesuffix(".pt2")
        with zipfile.ZipFile(parts[1]) as source, open(path, "wb") as file, zipfile.ZipFile(file, "w") as target:
            for info in source.infolist():
                if not weights and re.search(r"/data/weights/weight_\d+$", info.filename):
                    continue
                name = stem + info.filename.removeprefix(root)
                if info.filename == entry:
                    _add(target, file, name, json.dumps(_shortened(as_trained)).encode())
                else:
                    _add(target, file, name, source.read(info))
            if not is_one_graph:
                _add(target, file, f"{stem}/extra/accelerate_eval.json", json.dumps(_shortened(as_evaluated)).encode())
    finally:
        for part in parts:
            if os.path.exists(part):
                os.remove(part)
    return {**facts, "one_graph": is_one_graph, "weights": weights}


def _add(archive, file, name, contents):
    """Adds an entry whose contents begin at a multiple of ALIGNMENT, so that they can be mapped."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    large = 20 if len(contents) * 1.05 > zipfile.ZIP64_LIMIT else 0
    begin = file.tell() + 30 + len(name.encode()) + large + 4
    padding = -begin % ALIGNMENT
    info.extra = b"FB" + padding.to_bytes(2, "little") + bytes(padding)
    archive.writestr(info, contents)


def _program_in(path):
    with zipfile.ZipFile(path) as archive:
        entry = next(name for name in archive.namelist() if name.endswith("models/model.json"))
        return entry, json.loads(archive.read(entry))


def _shortened(program):
    """Keeps the last call outside of PyTorch of each stack trace, without the directories of packages."""
    def shorten(graph):
        for node in graph["nodes"]:
            frames = re.findall(r'File "[^"]*", line [^\n]*(?:\n(?!\s*File ")[^\n]*)?', node["metadata"].get("stack_trace", ""))
            outside = [frame for frame in frames if "/torch/" not in frame.split("\n")[0]]
            frame = (outside or frames or [""])[-1]
            node["metadata"]["stack_trace"] = re.sub(rf'(?<=File ")(.*/site-packages/|{re.escape(os.getcwd())}/)', "", frame)
            for argument in node["inputs"]:
                if "as_graph" in argument["arg"]:
                    shorten(argument["arg"]["as_graph"]["graph"])
    shorten(program["graph_module"]["graph"])
    return program


def _evaluated(program):
    """The graph as eval() runs it, with numbers in place of the names of its values."""
    module = program["graph_module"]
    counters = {spec["buffer"]["arg"]["name"] for spec in module["signature"]["input_specs"]
                if "buffer" in spec and spec["buffer"]["buffer_name"].endswith("num_batches_tracked")}
    numbers = {}

    def numbered(value):
        if isinstance(value, dict):
            return {key: numbers.setdefault(item, len(numbers)) if key in ("name", "as_name") and isinstance(item, str)
                    else numbered(item) for key, item in value.items()}
        return [numbered(item) for item in value] if isinstance(value, list) else value

    def nodes_of(graph):
        for node in graph["nodes"]:
            operator = node["target"].split(".")[-2] if node["target"].startswith("torch.ops.aten.") else ""
            first = node["inputs"][0]["arg"].get("as_tensor", {}).get("name") if node["inputs"] else None
            if operator == "_assert_tensor_metadata" or (operator == "add_" and first in counters):
                continue
            arguments = []
            for argument in node["inputs"]:
                value = argument["arg"]
                if argument["name"] == TRAINING_ARGUMENTS.get(operator):
                    value = {"as_bool": False}
                if argument["name"] == "dropout_p" and operator == "scaled_dot_product_attention":
                    continue
                if "as_graph" in value:
                    value = {"graph": list(nodes_of(value["as_graph"]["graph"]))}
                arguments.append([argument["name"], value])
            yield [node["target"], arguments, node["outputs"]]

    graph = module["graph"]
    return numbered([list(nodes_of(graph)), graph["inputs"], graph["outputs"]])


def join_archives(parts, path):
    """Writes an archive of the entries of others; of several with one name, the first."""
    names = set()
    with open(path, "wb") as file, zipfile.ZipFile(file, "w") as target:
        for part in parts:
            with zipfile.ZipFile(part) as source:
                for info in source.infolist():
                    name = os.path.basename(path).removesuffix(".pt2") + "/" + info.filename.partition("/")[2]
                    if name not in names:
                        _add(target, file, name, source.read(info))
                        names.add(name)
