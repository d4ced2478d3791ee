"""Writes the files of torch.save in this directory, and what torch reads from them, to expected.json.

usage: python record.py

Recorded with torch 2.11.0 and numpy 2.4.6. torch_kinds_test.cpp reads the files.
"""
import argparse
import collections
import datetime
import json
import warnings
from pathlib import Path

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import SerializationFormat

HERE = Path(__file__).parent
DTYPES = {
    torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
}
recorded = {}


class Tagged(torch.Tensor):
    """A subclass without contents of its own."""


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        self.head = torch.nn.Linear(2, 3, bias=False)
        self.head.weight = self.layers[0].weight
        self.register_buffer("scale", torch.full((1,), 2.0).expand(3))
        self.constant = torch.tensor([7.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 1000):
            x = x * 2 + 1
        for i in range(3):
            x = x + float(i) * 0.5
        return self.layers(x) * self.scale


def record(name, tensors, value=None, **options):
    """Saves `value`; `tensors` are those that are found in it, by name."""
    torch.save(tensors if value is None else value, HERE / name, **options)
    expect(name, tensors)


def expect(name, tensors):
    found = {}
    for key, tensor in tensors.items():
        plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes().hex() if plain.numel() else ""
        found[key] = [DTYPES[plain.dtype], list(plain.shape), raw]
    recorded[name] = found


def numbers(*shape):
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count, dtype=torch.float32) + 1).reshape(shape)


def views():
    w = numbers(3, 4)
    z = torch.complex(numbers(2, 3), -numbers(2, 3))
    return {
        "contiguous": w,
        "transposed": w.t(),
        "rows": w[1:],
        "columns": w[:, 1:3],
        "steps": w[::2, ::3],
        "expanded": numbers(3, 1).expand(3, 4),
        "expanded_scalar": torch.tensor(5.0).expand(2, 2),
        "windows": numbers(6).unfold(0, 3, 1),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "tied": w,
        "conjugate": z.conj(),
        "conjugate_transposed": z.mH,
        "negative": torch.complex(numbers(3), -numbers(3)).conj().imag,
        "negative_conjugate": torch._neg_view(z.conj()),
        "negative_integers": torch._neg_view(torch.tensor([0, 1, -128, 300], dtype=torch.int16)),
        "negative_halves": torch._neg_view(torch.tensor([0.0, 1.5], dtype=torch.bfloat16)),
        "unconjugated": z,
    }


def dtypes():
    found = {}
    for dtype, name in DTYPES.items():
        width = torch.empty(0, dtype=dtype).element_size()
        raw = torch.arange(4 * width, dtype=torch.uint8) % (2 if dtype == torch.bool else 100)
        found[name] = raw.view(dtype)
    return found


def parameters():
    marked = torch.nn.Parameter(numbers(2, 2))
    marked.tensor_model_parallel = True
    tensor = numbers(3)
    tensor.note = {"axis": 0}
    conjugate = torch.nn.Parameter(torch.complex(numbers(2), numbers(2)).conj())
    conjugate.note = 1
    return {
        "parameter": torch.nn.Parameter(numbers(2)),
        "frozen": torch.nn.Parameter(numbers(2), requires_grad=False),
        "marked": marked,
        "conjugate": conjugate,
        "buffer": torch.nn.Buffer(numbers(2)),
        "unsaved_buffer": torch.nn.Buffer(numbers(2), persistent=False),
        "tensor_with_attribute": tensor,
        "subclass": numbers(2).as_subclass(Tagged),
    }


def others():
    """Values without tensors, of the kinds that checkpoints hold."""
    return {
        "none": None, "flag": True, "count": 3, "large": 1 << 80, "rate": 0.5, "text": "t", "raw": b"r", "size": torch.Size([1, 2]),
        "dtype": torch.float16, "device": torch.device("cpu"), "date": datetime.date(2026, 1, 2), "args": argparse.Namespace(lr=1),
        "set": {1, 2}, "scalar": numpy.float32(2), "complex": 1 + 2j, "slice": slice(1, 2), "numbers": collections.deque([1, 2, 3]),
        "counts": collections.defaultdict(int, {"a": 1}), "path": HERE.joinpath("x").relative_to(HERE), "empty": {}, "nested": [1, [2]],
        "bytes": bytearray(b"xy"),
    }


def containers(protocol):
    w = [numbers(2) + i for i in range(12)]
    model = collections.OrderedDict([("weight", w[0]), ("bias", w[1])])
    model._metadata = {"": {"version": 1}}
    value = {
        "model": model,
        "list": [w[2], 5, [w[3]]],
        "tuple": (w[4], {"inner": w[5]}),
        "numbered": {0: w[6], 1: {"exp_avg": w[7]}},
        "namespace": argparse.Namespace(weight=w[8]),
        "queue": collections.deque([w[9]]),
        "default": collections.defaultdict(list, {"x": [w[10]]}),
        True: w[11],
        **others(),
    }
    found = {
        "model.weight": w[0], "model.bias": w[1], "list.0": w[2], "list.2.0": w[3], "tuple.0": w[4], "tuple.1.inner": w[5],
        "numbered.0": w[6], "numbered.1.exp_avg": w[7], "namespace.weight": w[8], "queue.0": w[9], "default.x.0": w[10],
        "True": w[11],
    }
    name = f"containers_{protocol}.pt"
    record(name, found, value, pickle_protocol=protocol)


def whole_modules():
    torch.manual_seed(1)
    net = Net()
    net(torch.ones(2, 2))
    record("module.pt", {**net.state_dict(), "constant": net.constant}, net)
    torch.jit.script(net).save(str(HERE / "script.pt"))
    expect("script.pt", {**net.state_dict(), "constant": net.constant})
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    found = {f"model.{key}": tensor for key, tensor in net.state_dict().items()}
    for i, state in optimizer.state_dict()["state"].items():
        found.update({f"optimizer.state.{i}.{key}": tensor for key, tensor in state.items()})
    found["rng"] = torch.arange(8, dtype=torch.uint8)
    record("training.pt", found, {
        "epoch": 3, "model": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": found["rng"],
        "losses": numpy.arange(3.0), "config": {"lr": 1e-3, "names": ["a", "b"]},
    })


def distributed():
    state = {"model": {"weight": numbers(3, 4), "bias": numbers(4).to(torch.bfloat16)}, "step": 3}
    for layout in SerializationFormat:
        name = f"distributed_{layout.value}"
        writer = dcp.FileSystemWriter(HERE / name, serialization_format=layout)
        dcp.save(state, storage_writer=writer, no_dist=True)
        expect(name, {f"model.{key}": tensor for key, tensor in state["model"].items()})


def refused():
    """Files that hold what cannot be read; the test has the messages."""
    w = numbers(2)
    torch.save({"w": w, "graph": torch.eye(2).to_sparse()}, HERE / "sparse.pt")
    torch.save({"w": w, "q": torch.quantize_per_tensor(w, 0.1, 0, torch.qint8)}, HERE / "quantized.pt")
    torch.save({"w": w, "z": torch.zeros(1, dtype=torch.complex128)}, HERE / "complex128.pt")
    torch.save({"w": w, "m": torch.empty(2, device="meta")}, HERE / "meta.pt")
    torch.save({"w": w, "s": numbers(3).untyped_storage()}, HERE / "storage.pt")
    torch.save({"a.b": w, "a": {"b": w + 1}}, HERE / "same_name.pt")
    torch.save({"epoch": 3, "lr": 0.5}, HERE / "nothing.pt")
    torch.save({"arr": numpy.arange(3)}, HERE / "array.pt")
    torch.jit.freeze(torch.jit.script(Net().eval())).save(str(HERE / "frozen.pt"))


def main():
    warnings.simplefilter("ignore")
    record("views.pt", views())
    record("views_legacy.pt", views(), _use_new_zipfile_serialization=False)
    record("dtypes.pt", dtypes())
    record("parameters.pt", parameters())
    record("parameters_legacy.pt", parameters(), _use_new_zipfile_serialization=False)
    for protocol in (2, 5):
        containers(protocol)
    record("list.pt", {"0": numbers(2), "1.w": numbers(3)}, [numbers(2), {"w": numbers(3)}])
    record("tensor.pt", {"": numbers(2)}, numbers(2))
    record("array_beside.pt", {"w": numbers(2)}, {"w": numbers(2), "arr": numpy.arange(3)})
    record("empty.pt", {}, collections.OrderedDict())
    whole_modules()
    distributed()
    refused()
    files = []
    for name, tensors in recorded.items():
        lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(tensor)}" for key, tensor in tensors.items())
        files.append(f"  {json.dumps(name)}: {{\n{lines}\n  }}")
    (HERE / "expected.json").write_text("{\n" + ",\n".join(files) + "\n}\n")


if __name__ == "__main__":
    main()
