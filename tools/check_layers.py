#!/usr/bin/env python3
"""Checks which room includes which (docs/develop/architecture.md), and a few rules that a compiler cannot check.

usage: check_layers.py [ROOT]; prints every breach and ends with 1 if there is any.
"""
import re
import sys
from pathlib import Path

import growth


def read_table(page):
    """(room -> rooms it may include besides itself, rooms without LibTorch), from the table of the architecture page."""
    may_include, without_libtorch = {}, set()
    for room, holds, rooms in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) ?\|$", page.read_text(), re.MULTILINE):
        may_include[room] = set(may_include) if rooms == "all above" else {name for name in rooms.split(", ") if name}
        if "no LibTorch" in holds:
            without_libtorch.add(room)
    return may_include, without_libtorch


MAY_INCLUDE, WITHOUT_LIBTORCH = read_table(Path(__file__).parent.parent / "docs/develop/architecture.md")
LIBTORCH = re.compile(r"^(torch|ATen|c10)/")
PUBLIC_WITHOUT_LIBTORCH = {
    "activation_checkpointing.h", "block_plan.h", "byte_size.h", "deepspeed.h", "detail/message_text.h", "device_map.h", "dynamo.h", "environment.h", "error.h", "export.h", "fp8.h", "fully_sharded.h", "launch.h", "log.h", "logger.h", "machine.h", "megatron_lm.h", "memory_plan.h",
    "model_options.h", "parallel_options.h", "parallelism_config.h", "planning.h", "progress.h", "safetensors.h", 
    "tracker.h"}
# Folders of rooms with LibTorch that do without it.
FOLDERS_WITHOUT_LIBTORCH = {"big_model/plan"}
MOST_LINES = 600
# Areas in brackets at the start of messages, besides rooms: subjects that users know by these names.
SUBJECTS = {"files", "nested", "safetensors", "torch"}


def includes_of(text):
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if found:
            yield number, found[1], found[2]


def breaches_in(path, room, text):
    if len(text.splitlines()) > MOST_LINES:
        yield 1, f"more than {MOST_LINES} lines"
    without_libtorch = room in WITHOUT_LIBTORCH or any(f"/{folder}/" in path.as_posix() for folder in FOLDERS_WITHOUT_LIBTORCH)
    for number, quote, name in includes_of(text):
        first = name.split("/")[0]
        if without_libtorch and LIBTORCH.match(name):
            yield number, f"{room} must not know LibTorch: {name}"
        if without_libtorch and first == "accelerate" and name.removeprefix("accelerate/") not in PUBLIC_WITHOUT_LIBTORCH:
            yield number, f"{room} must not include a public header that knows LibTorch: {name}"
        if room == "include":
            if quote == '"' or first in MAY_INCLUDE:
                yield number, f"public headers include nothing of src: {name}"
            if name == "torch/torch.h":
                yield number, "public headers include narrow LibTorch headers only: torch/torch.h"
        elif quote == '"' and first in MAY_INCLUDE and first != room and first not in MAY_INCLUDE[room]:
            yield number, f"{room} must not include {first}: {name}"
    for number, line in enumerate(text.splitlines(), 1):
        for area in re.findall(r'"\[([a-z_]+)\] ', line) if "//" not in line else ():
            if area not in MAY_INCLUDE and area not in SUBJECTS:
                yield number, f"messages begin with a room: [{area}] is not one"
        if room != "config" and re.search(r"\b(getenv|secure_getenv|setenv|putenv|environ)\s*[(;]", line):
            yield number, "only config reads the environment"
        if room != "cli" and re.search(r"std::(cout|cerr|clog)\b|\bprintf\s*\(", line) and path.name != "log.cpp":
            yield number, "the library does not print"


def missing_in_umbrella(directory):
    """Public headers that accelerate.h neither includes nor names, nor one that it names includes."""
    umbrella = directory / "accelerate.h"
    if not umbrella.exists():
        return []
    known = set(re.findall(r"\w+\.h", umbrella.read_text()))
    for name in list(known):
        if (directory / name).exists():
            known |= {found[2].removeprefix("accelerate/") for found in includes_of((directory / name).read_text())}
    return sorted({path.name for path in directory.glob("*.h")} - known - {"accelerate.h"})


def main(root):
    files = [(p, "include") for p in (root / "include").rglob("*.h")]
    for directory in sorted((root / "src").glob("*")) + [root / "cli"]:
        if directory.is_dir():
            files += [(p, directory.name) for p in directory.rglob("*") if p.suffix in (".h", ".cpp")]
    count = 0
    seen = {}
    for path, room in files:
        if "gloo_headers" in path.parts:
            continue
        if room != "include" and room not in MAY_INCLUDE:
            print(f"{path}: room {room} does not exist")
            count += 1
            continue
        for number, text in breaches_in(path, room, path.read_text()):
            print(f"{path}:{number}: {text}")
            count += 1
        # Two types of one name in one namespace violate the one-definition rule without an error.
        if path.suffix == ".h" and room != "cli":
            for found in re.finditer(r"^(?:struct|class|enum class) (?:ACCELERATE_API )?([\w:]+)[^;{]*\{", path.read_text(), re.MULTILINE):
                if seen.setdefault(found[1], path) != path:
                    print(f"{path}: {found[1]} is a type in {seen[found[1]]}, too")
                    count += 1
    growth.report(root, [path for path, room in files if "gloo_headers" not in path.parts])
    for name in missing_in_umbrella(root / "include" / "accelerate"):
        print(f"include/accelerate/accelerate.h: neither includes {name} nor explains why")
        count += 1
    print(f"{len(files)} files, {count} breaches")
    return 1 if count or not files else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)))
