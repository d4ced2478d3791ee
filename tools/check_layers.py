#!/usr/bin/env python3
"""Checks which room includes which (docs/develop/architecture.md), that no sub-directories of a room include each other,
and a few rules that a compiler cannot check.

usage: check_layers.py [ROOT]; prints every breach and exits with 1 if there are any.
"""
import re
import sys
from pathlib import Path

import check_audit
import class_members
import growth


def table_under(page, heading):
    """Returns the rows of the table that begins with `heading`, up to the next empty line."""
    return page.read_text().partition(heading)[2].partition("\n\n")[0]


def read_rooms(page):
    """Returns (room -> rooms it may include besides itself, rooms without LibTorch) from the table of the architecture page."""
    may_include, without_libtorch = {}, set()
    rows = table_under(page, "| room | holds |")
    for room, holds, rooms in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) ?\|$", rows, re.MULTILINE):
        may_include[room] = set(may_include) if rooms == "all above" else {name for name in rooms.split(", ") if name}
        if "no LibTorch" in holds:
            without_libtorch.add(room)
    return may_include, without_libtorch


def read_public(page):
    """Returns (public header -> the room that implements it, headers that all rooms may include) from the same page."""
    room_of, open_to_all = {}, set()
    for room, headers in re.findall(r"^\| `(\w+)` \| (.*?) \|$", table_under(page, "| room | public headers"), re.MULTILINE):
        for name in headers.split(", "):
            header = name.strip("*") + ".h"
            if header in room_of:
                raise SystemExit(f"{page}: {header} belongs to {room_of[header]} and to {room}")
            room_of[header] = room
            if name.startswith("*"):
                open_to_all.add(header)
    return room_of, open_to_all


def includes_of(text):
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if found:
            yield number, found[1], found[2]


def headers_without_libtorch(directory):
    """Returns the public headers that include no LibTorch header, directly or through others."""
    public = {path.relative_to(directory).as_posix(): [name for _, _, name in includes_of(path.read_text())] for path in directory.rglob("*.h")}
    with_libtorch = {header for header, names in public.items() if any(LIBTORCH.match(name) for name in names)}
    while True:
        more = {header for header, names in public.items() if any(name.removeprefix("accelerate/") in with_libtorch for name in names)}
        if more <= with_libtorch:
            return set(public) - with_libtorch
        with_libtorch |= more


REPOSITORY = Path(__file__).parent.parent
ARCHITECTURE = REPOSITORY / "docs/develop/architecture.md"
LIBTORCH = re.compile(r"^(torch|ATen|c10)/")
MAY_INCLUDE, WITHOUT_LIBTORCH = read_rooms(ARCHITECTURE)
ROOM_OF, OPEN_TO_ALL = read_public(ARCHITECTURE)
PUBLIC_WITHOUT_LIBTORCH = headers_without_libtorch(REPOSITORY / "include/accelerate")
# Folders without LibTorch in rooms that use it.
FOLDERS_WITHOUT_LIBTORCH = {"big_model/plan"}
# Rooms that learn where the boxes of a tensor are from its layout alone, and the axes that they may name: pipeline stages
# have different parameters, and experts lie on their own grid, which folds into the shards.
WITHOUT_AXES = {"checkpoint", "params"}
AXES_OF_PARAMETERS = {"pipeline", "expert"}
AXES_NAMED = {"src/checkpoint/weights/prepared_weights.cpp": {"shard"}}
# Strategies leave it to the transport's adapters to stage tensors through host memory; where they need a host value, a
# comment above says for what.
COPY_TO_HOST = re.compile(r"\.cpu\(\)|\.(?:to|device)\([^;]*\bkCPU\b")
WITHOUT_COPIES_TO_HOST = {"parallel"}
MOST_LINES = 600
MOST_FIELDS = 10
MOST_FIELDS_IN_TRAIN = 12
MOST_METHODS = 25
# A list of strategies has one method for each of Strategy's.
METHODS_ALLOWED = {"StrategyList": 38}
# Areas in brackets at the start of messages, in addition to rooms: subjects that users know by these names.
SUBJECTS = {"files", "nested", "safetensors", "torch"}


def public_name(path):
    """Returns the name by which others include a public header, without accelerate/."""
    return path.as_posix().rpartition("/include/accelerate/")[2]


def breaches_in(path, room, text):
    if len(text.splitlines()) > MOST_LINES:
        yield 1, f"more than {MOST_LINES} lines"
    without_libtorch = room in WITHOUT_LIBTORCH or any(f"/{folder}/" in path.as_posix() for folder in FOLDERS_WITHOUT_LIBTORCH)
    for number, quote, name in includes_of(text):
        first = name.split("/")[0]
        header = name.removeprefix("accelerate/")
        own = ROOM_OF.get(public_name(path), "") if room == "include" else room
        if header in ROOM_OF and header not in OPEN_TO_ALL and own and ROOM_OF[header] not in MAY_INCLUDE[own] | {own}:
            yield number, f"{own} must not include {header}, which is a header of {ROOM_OF[header]}"
        if without_libtorch and LIBTORCH.match(name):
            yield number, f"{room} must not know LibTorch: {name}"
        if without_libtorch and first == "accelerate" and header not in PUBLIC_WITHOUT_LIBTORCH:
            yield number, f"{room} must not include a public header that knows LibTorch: {name}"
        if room == "include":
            if quote == '"' or first in MAY_INCLUDE:
                yield number, f"public headers include nothing of src: {name}"
            if name == "torch/torch.h":
                yield number, "public headers include narrow LibTorch headers only: torch/torch.h"
        elif quote == '"' and first in MAY_INCLUDE and first != room and first not in MAY_INCLUDE[room]:
            yield number, f"{room} must not include {first}: {name}"
    comment = ""  # above the line
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("//"):
            comment += line
            continue
        if room in WITHOUT_COPIES_TO_HOST and COPY_TO_HOST.search(line) and "// On the host: " not in comment:
            yield number, f"{room} copies no tensor to the host; if the host needs its values, say for what: // On the host: ..."
        comment = ""
        for area in re.findall(r'"\[([a-z_]+)\] ', line) if "//" not in line else ():
            if area not in MAY_INCLUDE and area not in SUBJECTS:
                yield number, f"messages begin with a room: [{area}] is not one"
        axes = set(re.findall(r"\bAxis::(\w+)", line)) - AXES_OF_PARAMETERS if room in WITHOUT_AXES else set()
        for axis in sorted(axes - next((named for file, named in AXES_NAMED.items() if path.as_posix().endswith(file)), set())):
            yield number, f"{room} reads layouts, and names no axis of a strategy: {axis}"
        if room != "config" and re.search(r"\b(getenv|secure_getenv|setenv|putenv|environ)\s*[(;]", line):
            yield number, "only config reads the environment"
        if room != "cli" and re.search(r"std::(cout|cerr|clog)\b|\bprintf\s*\(", line) and path.name != "log.cpp":
            yield number, "the library does not print"


def misplaced_headers(root, files):
    """Yields a message for each public header that is missing from the table, does not exist, or has no source in its room."""
    directory = root / "include/accelerate"
    present = {public_name(path): path for path, room in files if room == "include" and directory in path.parents}
    for header in sorted(set(present) - set(ROOM_OF)):
        yield f"{present[header]}: belongs to no room; name it in the table of {ARCHITECTURE.name}"
    if root == REPOSITORY:
        for header in sorted(set(ROOM_OF) - set(present)):
            yield f"{ARCHITECTURE}: there is no public header {header}"
    texts = {(f"accelerate/{public_name(path)}" if room == "include" else path.relative_to(root / "src").as_posix()): path.read_text()
             for path, room in files if room != "cli"}
    seen = {}  # room -> headers that its sources include, directly or through others
    for path, room in files:
        if path.suffix != ".cpp" or room == "cli":
            continue
        known, left = seen.setdefault(room, set()), [path.relative_to(root / "src").as_posix()]
        while left:
            more = {name for _, _, name in includes_of(texts.get(left.pop(), ""))} - known
            known |= more
            left += more
    for header, path in sorted(present.items()):
        room = ROOM_OF.get(header)
        if room and "ACCELERATE_API" in path.read_text() and f"accelerate/{header}" not in seen.get(room, ()):
            yield f"{path}: no source of {room}, which is to implement it, includes it"


def structs_without_headings(root):
    """Yields public options structs of more than MOST_FIELDS fields that are not grouped under headings: comment lines
    with an empty line (or the beginning of the struct) before them and an empty line after them."""
    others = check_audit.structs_without_options(root) if (root / "tests/audit/structs.txt").exists() else {}
    for header in sorted((root / "include/accelerate").glob("*.h")):
        fields = [struct for struct, field in check_audit.struct_fields(header) if field and struct not in others]
        for struct in sorted({struct for struct in fields if fields.count(struct) > MOST_FIELDS}):
            body = re.search(rf"^struct (?:ACCELERATE_API )?{struct}\b[^;{{]*\{{\n(.*?)^\}};", header.read_text(), re.MULTILINE | re.DOTALL)[1]
            headings = re.findall(r"(?:^|\n\n)((?:  // [^\n]*\n)+)\n", body)
            if len(headings) < 2 or not body.startswith("  // "):
                yield f"{header}: {struct} has {fields.count(struct)} fields; group them under headings"


def fields_in_train(root):
    """Yields a message for each class or struct of train that has more than MOST_FIELDS_IN_TRAIN fields."""
    for path in sorted(path for suffix in ("*.h", "*.cpp") for path in (root / "src/train").rglob(suffix)):
        for name, body in class_members.classes(path.read_text()):
            count = len(class_members.own_fields(body))
            if count > MOST_FIELDS_IN_TRAIN:
                yield f"{path}: {name} has {count} fields; divide it by who reads them"


def large_classes(files):
    """Yields a message for each private class of more than MOST_METHODS methods."""
    for path, room in files:
        if room == "include":
            continue
        for name, body in class_members.classes(path.read_text()):
            count = len(class_members.own_methods(body, name))
            if count > METHODS_ALLOWED.get(name, MOST_METHODS):
                yield f"{path}: {name} has {count} methods; divide it by what they have in common"


def reachable(included):
    """Returns (directory -> all that it includes, directly or through others) for `included`, which has direct ones."""
    reached = {directory: set(others) for directory, others in included.items()}
    for middle in reached:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    return reached


def rings_in(top, directory, paths):
    """Yields a message for each two sub-directories of `directory` that include each other, or larger ring of them, with
    the includes of its weakest direction. `top` holds the rooms. Files at a room's root count as one sub-directory, ".";
    further down, a directory's own files are above some of its sub-directories and below others."""
    edges = {}
    def child(path):
        return path.relative_to(directory).parts[0] if path.parent != directory else "."
    for path in sorted(paths):
        for _, quote, name in includes_of(path.read_text()):
            other = top / name
            if quote != '"' or directory not in other.parents or child(other) == child(path):
                continue
            if directory.parent == top or "." not in (child(path), child(other)):
                edges.setdefault((child(path), child(other)), []).append(f"{path.relative_to(directory)} -> {other.relative_to(directory)}")
    reached = reachable({directory: {other for first, other in edges if first == directory} for edge in edges for directory in edge})
    rings = {frozenset(other for other in reached[directory] if directory in reached[other]) for directory in reached}
    for ring in sorted(filter(None, rings), key=sorted):
        pairs = [edge for edge in sorted(edges) if ring.issuperset(edge) and edge[0] < edge[1] and edge[::-1] in edges]
        for members in pairs or [sorted(ring)]:
            fewest = min((edges[edge] for edge in edges if set(members).issuperset(edge)), key=len)
            yield f"{directory}: {', '.join(members)} include each other: {', '.join(fewest)}"


def all_rings(root, paths):
    """Yields the messages of rings_in() for every directory of a room, and for the tool."""
    by_directory = {}
    for path in paths:
        top = root if root / "cli" in path.parents else root / "src"
        for directory in path.parents:
            if top in directory.parents:
                by_directory.setdefault((top, directory), []).append(path)
    for (top, directory), below in sorted(by_directory.items()):
        yield from rings_in(top, directory, below)


def missing_in_umbrella(directory):
    """Returns the public headers that accelerate.h does not include or name, and that no header it names includes."""
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
        # Two types with the same name in one namespace violate the one-definition rule without an error.
        if path.suffix == ".h" and room != "cli":
            for found in re.finditer(r"^(?:struct|class|enum class) (?:ACCELERATE_API )?([\w:]+)[^;{]*\{", path.read_text(), re.MULTILINE):
                if seen.setdefault(found[1], path) != path:
                    print(f"{path}: {found[1]} is a type in {seen[found[1]]}, too")
                    count += 1
    growth.report(root, [path for path, room in files if "gloo_headers" not in path.parts])
    rings = all_rings(root, [path for path, room in files if room != "include"])
    for text in [*misplaced_headers(root, files), *structs_without_headings(root), *fields_in_train(root), *large_classes(files), *rings]:
        print(text)
        count += 1
    for name in missing_in_umbrella(root / "include" / "accelerate"):
        print(f"include/accelerate/accelerate.h: neither includes {name} nor explains why")
        count += 1
    print(f"{len(files)} files, {count} breaches")
    return 1 if count or not files else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)))
