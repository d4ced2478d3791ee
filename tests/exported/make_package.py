#!/usr/bin/env python3
"""Compiles a small model for package_test.cpp.

    make_package.py DIRECTORY VERSION

Writes net.pt2, plain.pt2 (without its graph), numbers.pt2 (with a graph whose inputs are not all tensors), record.safetensors (inputs,
and what Python computes), and trained.safetensors (other weights). Ends with 77 and the reason if this Python cannot compile for
LibTorch VERSION.
"""
import os
import pathlib
import shutil
import sys
import zipfile

out, version = pathlib.Path(sys.argv[1]), sys.argv[2]
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(out / "cache")


def skip(reason):
    print(reason)
    sys.exit(77)


def numbers(text):
    return [int(part) for part in text.split("+")[0].split(".")[:2]]


try:
    import torch
    from torch import nn
except ImportError:
    skip("the Python of ACCELERATE_CROSS_PYTHON has no torch")
if not [2, 11] <= numbers(torch.__version__) <= numbers(version):
    skip(f"LibTorch {version} runs what torch 2.11 or newer compiles, up to its own version, but Python has {torch.__version__}")
if not shutil.which(os.environ.get("CXX", "g++")):
    skip("there is no C++ compiler")

sys.path[:0] = [str(pathlib.Path(__file__).parents[2] / directory) for directory in ("python", "tools")]
import torch._inductor  # noqa: E402
from make_exported_programs import write_safetensors  # noqa: E402
import accelerate_cpp_export as export  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 6)
        self.fc = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 16, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(3, 3)
        self.register_buffer("scale", torch.full((6,), 2.0))
        self.register_buffer("hidden", torch.arange(6.0) + 1, persistent=False)
        self.constant = torch.tensor([3.0])

    def forward(self, ids, shift=None, flag=True):
        h = self.norm(torch.tanh(self.fc(self.embed(ids))) * self.scale / self.hidden + self.constant) + shift
        return {"logits": self.head(h), "pair": (h, h.sum())}


class Numbers(nn.Module):
    def forward(self, x, n):
        return x * n


def add_outputs(tensors, prefix, model, ids, shift):
    result = model(ids, shift=shift)
    tensors.update({f"{prefix}.ids": ids, f"{prefix}.logits": result["logits"], f"{prefix}.h": result["pair"][0],
                    f"{prefix}.sum": result["pair"][1]})


def trained():
    torch.manual_seed(1)
    model = Net().eval()
    model.norm.running_mean.normal_()
    model.scale.fill_(1.5)
    return model


torch.set_num_threads(1)
torch._inductor.config.cpp_cache_precompile_headers = False
torch.manual_seed(0)
net, other = Net().eval(), trained()
shift = torch.randn(6)
tensors = {"shift": shift}
with torch.no_grad():
    for prefix, count in (("first", 5), ("other", 9)):
        add_outputs(tensors, prefix, net, torch.arange(count) % 16, shift)
        add_outputs(tensors, "trained_" + prefix, other, torch.arange(count) % 16, shift)
rows = {0: torch.export.Dim("rows", min=2, max=64)}
export.compile_for_cpp(net, out / "net.pt2", (torch.arange(4),), dict(shift=shift, flag=True),
                       dynamic_shapes=dict(ids=rows, shift=None, flag=None))
with zipfile.ZipFile(out / "net.pt2") as source, zipfile.ZipFile(out / "plain.pt2", "w") as target:
    for info in source.infolist():
        if not info.filename.startswith(("net/models/", "net/data/weights/", "net/data/constants/", "net/extra/")):
            target.writestr(info.filename, source.read(info))
program = torch.export.export(Numbers(), (shift, 3), dynamic_shapes=(None, torch.export.Dim.DYNAMIC))
torch.export.save(program, out / "graph.pt2")
export.join_archives([out / "plain.pt2", out / "graph.pt2"], str(out / "numbers.pt2"))
write_safetensors(out / "record.safetensors", tensors)
write_safetensors(out / "trained.safetensors", {name: value for name, value in other.state_dict().items() if name != "head.weight"})
