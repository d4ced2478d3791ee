"""Converts random files of the Python packages torch and safetensors with `accelerate-cpp convert`, and reads the results with them.

usage: python cross_read.py ACCELERATE_CPP [NUMBER OF FILES EACH WAY]
Exits with 1 if anything differs, with 77 if torch or safetensors is missing.
"""
import random
import subprocess
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"skipped: this Python has no package {missing.name}")
    sys.exit(77)

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool, torch.complex64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]


def random_tensor(rng):
    dtype = rng.choice(DTYPES)
    shape = [rng.randint(0, 5) for _ in range(rng.randint(0, 4))]
    width = torch.empty(0, dtype=dtype).element_size()
    count = 1
    for size in shape:
        count *= size
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count * width,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def random_state(rng):
    state = OrderedDict()
    for i in range(rng.randint(0, 12)):
        name = ".".join(rng.choice(["a", "weight", "bias", "0", "größe", "layer"]) for _ in range(rng.randint(1, 4))) + str(i)
        state[name] = random_tensor(rng)
    return state


def bits(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def differences(found, expected):
    if set(found) != set(expected):
        return f"names {sorted(set(found) ^ set(expected))}"
    for name, tensor in expected.items():
        other = found[name]
        if other.dtype != tensor.dtype or other.shape != tensor.shape or not torch.equal(bits(other), bits(tensor)):
            return f"{name}: {tensor.dtype} {list(tensor.shape)} became {other.dtype} {list(other.shape)}"
    return None


def make_odd(rng, state):
    """For torch.save: tied and non-contiguous tensors, conjugate and negative views, parameters with attributes."""
    odd = OrderedDict(state)
    for name, tensor in list(state.items()):
        kind = rng.randint(0, 5)
        if kind == 0:
            odd[name + ".tied"] = odd[name]
        elif kind == 1 and tensor.dim() >= 2:
            odd[name] = tensor.transpose(0, 1)
        elif kind == 2 and tensor.dim() >= 1 and tensor.shape[0] > 1:
            odd[name] = tensor[1:]
        elif kind == 3 and tensor.is_complex():
            odd[name] = tensor.conj()
        elif kind == 3 and tensor.dtype in DTYPES[:4]:
            odd[name] = torch._neg_view(tensor)
        elif kind == 4 and tensor.is_floating_point():
            odd[name] = torch.nn.Parameter(tensor)
            odd[name].note = name
    return odd


def main():
    tool, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    rng = random.Random(1)
    torch.manual_seed(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory) / "source", Path(directory) / "target"

        def convert(start, end):
            subprocess.run([tool, "convert", str(start), str(end)], check=True, stdout=subprocess.DEVNULL)

        def check(what, found, expected):
            nonlocal wrong
            differs = differences(found, expected)
            if differs:
                wrong += 1
                print(f"{what}: {differs}")

        for i in range(count):
            state = random_state(rng)
            # Python's safetensors -> torch zip -> Python's torch
            save_file(dict(state), source.with_suffix(".safetensors"))
            convert(source.with_suffix(".safetensors"), target.with_suffix(".bin"))
            check(f"{i} safetensors to torch", torch.load(target.with_suffix(".bin"), weights_only=True), state)
            # Python's torch -> safetensors -> Python's safetensors
            odd = make_odd(rng, state)
            legacy = i % 7 == 0 and all(t.dtype in DTYPES[:11] for t in odd.values())
            torch.save(odd, source.with_suffix(".bin"), _use_new_zipfile_serialization=not legacy)
            convert(source.with_suffix(".bin"), target.with_suffix(".safetensors"))
            # A safetensors file keeps one name of each group of tied tensors.
            found = load_file(target.with_suffix(".safetensors"))
            check(f"{i} torch to safetensors", found, odd)
    print(f'{{"files_each_way": {count}, "different": {wrong}}}')
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
