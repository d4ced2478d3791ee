#!/usr/bin/env python3
"""Checks which room includes which (docs/develop/architecture.md), and a few rules that a compiler cannot.

usage: check_layers.py [ROOT]; prints every breach and ends with 1 if there is any.
"""
import re
import sys
from pathlib import Path

# room -> rooms of src/ it may include besides itself
MAY_INCLUDE = {
    "base": set(),
    "config": {"base"},
    "format": {"base"},
    "engines": {"base", "config"},
    "comm": {"base", "config"},
    "params": {"base", "comm"},
    "gate": {"base", "comm"},
    "activations": {"base"},
    "optim": {"base", "comm"},
    "precision": {"base", "comm"},
    "track": {"base", "comm"},
    "data": {"base", "comm"},
    "parallel": {"base", "config", "engines", "comm", "params", "gate", "activations"},
    "checkpoint": {"base", "format", "comm", "params"},
    "big_model": {"base", "format", "params", "gate"},
    "train": {"base", "config", "engines", "format", "comm", "params", "gate", "activations", "optim", "precision", "data", "track", "parallel", "checkpoint", "big_model"},
    "cuda": {"base", "config", "comm", "params", "gate", "precision", "data", "parallel"},
    "cli": {"base", "config", "engines", "format"},
}
WITHOUT_LIBTORCH = {"base", "config", "engines", "format", "cli"}
LIBTORCH = re.compile(r"^(torch|ATen|c10)/")
PUBLIC_WITHOUT_LIBTORCH = {"deepspeed.h", "error.h", "export.h", "fully_sharded.h", "log.h", "megatron_lm.h", "parallelism_config.h", "safetensors.h"}
MOST_LINES = 600


def includes_of(text):
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if found:
            yield number, found[1], found[2]


def breaches_in(path, room, text):
    if len(text.splitlines()) > MOST_LINES:
        yield 1, f"more than {MOST_LINES} lines"
    for number, quote, name in includes_of(text):
        first = name.split("/")[0]
        if room in WITHOUT_LIBTORCH and LIBTORCH.match(name):
            yield number, f"{room} must not know LibTorch: {name}"
        if room in WITHOUT_LIBTORCH and first == "accelerate" and name.split("/")[1] not in PUBLIC_WITHOUT_LIBTORCH:
            yield number, f"{room} must not include a public header that knows LibTorch: {name}"
        if room == "include":
            if quote == '"' or first in MAY_INCLUDE:
                yield number, f"public headers include nothing of src: {name}"
            if name == "torch/torch.h":
                yield number, "public headers include narrow LibTorch headers only: torch/torch.h"
        elif quote == '"' and first in MAY_INCLUDE and first != room and first not in MAY_INCLUDE[room]:
            yield number, f"{room} must not include {first}: {name}"
    for number, line in enumerate(text.splitlines(), 1):
        if room != "config" and re.search(r"\b(getenv|secure_getenv|setenv|putenv|environ)\s*[(;]", line):
            yield number, "only config reads the environment"
        if room != "cli" and re.search(r"std::(cout|cerr|clog)\b|\bprintf\s*\(", line) and path.name != "log.cpp":
            yield number, "the library does not print"


def main(root):
    files = [(p, "include") for p in (root / "include").rglob("*.h")]
    for folder in sorted((root / "src").glob("*")) + [root / "cli"]:
        if folder.is_dir():
            files += [(p, folder.name) for p in folder.rglob("*") if p.suffix in (".h", ".cpp")]
    count = 0
    seen = {}
    for path, room in files:
        if "gloo_headers" in path.parts:
            continue
        if room != "include" and room not in MAY_INCLUDE:
            print(f"{path}: no room is called {room}")
            count += 1
            continue
        for number, text in breaches_in(path, room, path.read_text()):
            print(f"{path}:{number}: {text}")
            count += 1
        # Two types of one name in one namespace are nobody's error, and a crash.
        if path.suffix == ".h" and room != "cli":
            for found in re.finditer(r"^(?:struct|class|enum class) (?:ACCELERATE_API )?(\w+)[^;{]*\{", path.read_text(), re.MULTILINE):
                if seen.setdefault(found[1], path) != path:
                    print(f"{path}: {found[1]} is a type in {seen[found[1]]}, too")
                    count += 1
    print(f"{len(files)} files, {count} breaches")
    return 1 if count or not files else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)))
