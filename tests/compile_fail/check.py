#!/usr/bin/env python3
"""Compiles the programs of this directory, right and wrong ones, and checks the first error of each wrong one.

usage: check.py right|wrong COMPILER FLAG...

The first line of a program gives that error as a regular expression: "// Refused: ...". A line "// Names: ..." gives
text that the lines before the error must contain, such as the name of a type.

The programs are compiled as one file, since LibTorch's headers take most of the time: each in its own namespace, after
all headers. A compiler continues after an error, so each wrong program gives its message.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

INCLUDE = re.compile(r"^#include ([<\"][^>\"]+[>\"])", re.MULTILINE)
REFUSED = re.compile(r"\A// Refused: (.+)$", re.MULTILINE)
NAMES = re.compile(r"^// Names: (.+)$", re.MULTILINE)


def together(programs):
    headers = dict.fromkeys(header for text in programs.values() for header in INCLUDE.findall(text))
    result = "".join(f"#include {header}\n" for header in headers)
    for name, text in programs.items():
        result += f'#line 1 "{name}.cpp"\nnamespace {name} {{\n{INCLUDE.sub("", text)}\n}}\n'
    return result


def first_errors(output, programs, context_follows):
    """Maps each program to its first error line and the lines that belong to it. For an error in a header, g++ names
    the program before the error, clang after it."""
    mention = re.compile(r"(?:^|[ /])(\w+)\.cpp:\d+")

    def programs_in(lines):
        return [name for line in lines for name in mention.findall(line) if name in programs]

    lines = output.splitlines()
    places = [i for i, line in enumerate(lines) if re.search(r"\b(?:fatal )?error: ", line)]
    errors, current = {}, None
    for number, place in enumerate(places):
        before = lines[places[number - 1] + 1 if number else 0:place]
        after = lines[place + 1:places[number + 1] if number + 1 < len(places) else len(lines)]
        context = after if context_follows else before
        found = programs_in([lines[place]]) or programs_in(after)[:1] if context_follows else \
            programs_in([lines[place]]) or programs_in(before)[-1:]
        current = found[0] if found else current
        errors.setdefault(current, (lines[place], "\n".join(context)))
    return errors


def complaints_about(programs, errors):
    for name, text in programs.items():
        wanted = REFUSED.search(text)[1]
        if name not in errors:
            yield f"{name} was not refused; expected: {wanted}"
            continue
        line, context = errors[name]
        if not re.search(wanted, line):
            yield f"{name}: the first error is\n  {line}\nexpected: {wanted}"
        names = NAMES.search(text)
        if names and names[1] not in context + line:
            yield f"{name}: the lines of the first error do not name {names[1]}:\n{context}"


def main(mode, command):
    programs = {path.stem: path.read_text() for path in sorted(Path(__file__).parent.glob("*.cpp"))}
    silent = [name for name, text in programs.items() if not REFUSED.search(text)]
    if silent:
        sys.exit(f"these programs do not begin with // Refused: {', '.join(silent)}")
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout
    is_clang = "clang" in version
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "programs.cpp"
        source.write_text(together(programs))
        flags = ["-DMUST_FAIL"] if mode == "wrong" else []
        flags += ["-ferror-limit=0"] if is_clang else ["-fmessage-length=0", "-fno-diagnostics-show-caret"]
        result = subprocess.run([*command, *flags, "-fsyntax-only", str(source)], capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    if mode == "right":
        print(result.stderr)
        return result.returncode
    complaints = list(complaints_about(programs, first_errors(result.stderr, programs, is_clang)))
    if complaints or result.returncode == 0:
        print(result.stderr, *complaints, sep="\n")
        return 1
    print(f"{len(programs)} programs refused, each for its own reason")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
