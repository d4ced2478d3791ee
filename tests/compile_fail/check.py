#!/usr/bin/env python3
"""Compiles the programs of this directory, right and wrong ones, and looks for the message that each wrong one must give.

usage: check.py right|wrong COMPILER FLAG...

They are compiled as one file, since LibTorch's headers take most of the time: each in a namespace of its own, after all
headers. A compiler goes on after an error, so that each wrong program gives its message.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# program -> the message that the compiler must give if MUST_FAIL is defined
MESSAGES = {
    "temporary_optimizer": "the optimizer must outlive its handle",
    "forward_around_session": "discards qualifiers",
    "loader_not_moved": "move the loader in",
    "unordered_keys": "visited in the order of its keys",
    "value_without_place": "there is one {} for each value",
}
INCLUDE = re.compile(r"^#include ([<\"][^>\"]+[>\"])", re.MULTILINE)


def together(directory):
    programs = {path.stem: path.read_text() for path in sorted(directory.glob("*.cpp"))}
    if set(programs) != set(MESSAGES):
        sys.exit(f"programs and messages differ: {sorted(programs)}, {sorted(MESSAGES)}")
    headers = dict.fromkeys(header for text in programs.values() for header in INCLUDE.findall(text))
    result = "".join(f"#include {header}\n" for header in headers)
    for name, text in programs.items():
        result += f'#line 1 "{name}.cpp"\nnamespace {name} {{\n{text}\n}}\n'
    return result


def main(mode, command):
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "programs.cpp"
        source.write_text(together(Path(__file__).parent))
        flags = ["-DMUST_FAIL"] if mode == "wrong" else []
        result = subprocess.run([*command, *flags, "-fsyntax-only", str(source)], capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    if mode == "right":
        print(result.stderr)
        return result.returncode
    # The error, or the instantiation that caused it, must be in the program and have this message.
    missing = [name for name, message in MESSAGES.items() if message not in result.stderr or f"{name}.cpp" not in result.stderr]
    for name in missing:
        print(f"{name} was not refused with: {MESSAGES[name]}")
    if missing or result.returncode == 0:
        print(result.stderr)
        return 1
    print(f"{len(MESSAGES)} programs refused, each for its own reason")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
