#!/usr/bin/env python3
"""Checks docs/from_python.md: every public name of Accelerate has a line, and every name that the line gives for it exists here.

usage: check_python_names.py ROOT NAMES [MORE_ROOT...]

NAMES lists Accelerate's names, one per line: a module's path, then a class and possibly its member, or a function, or
`Class(argument=)`. A table row of the page covers a name if its first column has it in backticks: `function`, `Class`,
`argument=`, and for a member `Class.member`, or `Class` and `member` in one row.
Every identifier in backticks in the second column, or in the first if the second says "the same", must be in a public
header or in the tool's reference, unless the row says "not yet", "refused" or "none".
A row that says "none" must be right: no public header may declare one of its names, unless another row covers that name.
And "... maps: not yet" is wrong if there is a header with that name.
"""
import re
import sys
from pathlib import Path

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words of C++ and of other programs that examples in backticks use.
ELSEWHERE = set("""auto const std f x r i n dir path torch python train bash optional vector function map string int double bool true false
nullopt make_unique move cmake sh accelerate micro_step MNIST torchvision Accelerator AcceleratedOptimizer AcceleratedScheduler PartialState AcceleratorState
DistributedDataParallelKwargs FullyShardedDataParallelPlugin DeepSpeedPlugin MegatronLMPlugin GradScalerKwargs""".split())


def rows(text):
    for line in text.splitlines():
        if line.startswith("|") and not set(line) <= set("|- "):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            if len(cells) >= 2:
                yield [cell.strip() for cell in cells]


def tokens(cell):
    """Returns the names in backticks, as written and without call parentheses."""
    found = set()
    for code in re.findall(r"`([^`]+)`", cell):
        for part in re.split(r",\s+", code):
            found.add(part)
            found.add(re.sub(r"\(.*", "", part))
    return found


def covered_names(page):
    """Returns the single tokens and the (class, member) pairs of the first columns."""
    single, pairs = set(), set()
    for cells in rows(page):
        here = tokens(cells[0])
        single |= here
        for left in here:
            for right in here:
                pairs.add((left, right))
    return single, pairs


def is_covered(name, single, pairs):
    argument = re.match(r".*\((\w+=)\)$", name)
    if argument:
        return argument[1] in single or argument[1][:-1] in single
    parts = name.split(".")
    if len(parts) > 2 and parts[-2][:1].isupper():
        owner, member = parts[-2:]
        return f"{owner}.{member}" in single or (owner, member) in pairs
    return parts[-1] in single


def known_identifiers(root):
    known = set(ELSEWHERE)
    sources = [*root.glob("include/accelerate/**/*.h"), *root.glob("src/config/options/*.cpp"),
               *root.glob("docs/reference/command_line.md"), *root.glob("docs/reference/options.md"), *root.glob("python/*.py")]
    for source in sources:
        known |= set(IDENTIFIER.findall(source.read_text()))
    return known


def unknown_identifiers(page, known):
    for cells in rows(page):
        if re.search(r"not yet|refused|none\b", " ".join(cells[1:])):
            continue
        # "The same" claims the names of the first column.
        same = [f"`{token}`" for token in tokens(cells[0]) if re.fullmatch(r"[A-Za-z_.]+=?", token)]
        claimed = cells[1] + (" ".join(same) if re.match(r"the same|[^|]*, the same", cells[1]) else "")
        for code in re.findall(r"`([^`]+)`", claimed):
            for word in IDENTIFIER.findall(re.sub(r'"[^"]*"', "", code)):
                if word not in known:
                    yield cells[0], word


# Names that public headers declare, but for other things than Accelerate's.
OTHER_THINGS = {"begin", "end", "reset", "shape", "dtype"}


def declared_names(root):
    """Returns the classes, functions and fields that public headers declare."""
    declared = set()
    for header in sorted((root / "include/accelerate").glob("*.h")):
        text = re.sub(r"//.*", "", header.read_text())
        declared |= set(re.findall(r"\b(?:class|struct|enum)\s+(?:class\s+)?(?:ACCELERATE_API\s+)?(\w+)", text))
        declared |= set(re.findall(r"\b(\w+)\s*\(", text))
        declared |= set(re.findall(r"\b(\w+)(?:\s*=[^;{}]*|\{[^;{}]*\})?;", text))
    return declared


def false_absences(page, root):
    """Yields (row, name) for each name that exists here although its row says it does not."""
    declared = declared_names(root)
    headers = {header.stem for header in (root / "include/accelerate").glob("*.h")}
    told = set()
    absent = []
    for cells in rows(page):
        names = {name.rpartition(".")[2].rstrip("=") for name in tokens(cells[0])}
        if cells[1].startswith("none"):
            absent += [(cells[0], name) for name in sorted(names)]
        else:
            told |= names
        for words in re.findall(r"(\w+(?: \w+)*): not yet", " ".join(cells[1:])):
            parts = words.split()
            for first in range(len(parts)):
                header = "_".join(parts[first:])
                if header in headers or header.rstrip("s") in headers:
                    yield cells[0], header
    for row, name in absent:
        if name in declared and name not in told and name not in OTHER_THINGS:
            yield row, name


def main():
    root, names = Path(sys.argv[1]), Path(sys.argv[2]).read_text().split("\n")
    page = (root / "docs/from_python.md").read_text()
    single, pairs = covered_names(page)
    names = [name for name in names if name]
    missing = [name for name in names if not is_covered(name, single, pairs)]
    unknown = list(unknown_identifiers(page, known_identifiers(root)))
    for name in missing:
        print(f"no line for {name}")
    for row, word in unknown:
        print(f"{row[:60]}: `{word}` is in no public header")
    absent = list(false_absences(page, root))
    for row, word in absent:
        print(f"{row[:60]}: `{word}` is here")
    print(f"{len(names) - len(missing)} of {len(names)} names, {len(unknown)} unknown identifiers, {len(absent)} that are here after all")
    sys.exit(bool(missing or unknown or absent))


if __name__ == "__main__":
    main()
