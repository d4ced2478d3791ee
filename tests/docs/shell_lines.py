#!/usr/bin/env python3
"""Runs the shell lines of the README and of all pages but the tutorials, each page in an empty folder.

usage: shell_lines.py ROOT BUILD LIST [PAGE...]

Lines are those of blocks of kind `sh`, `bash` and `console`; of the latter those after `$`, whose output must be among
what the lines print, where numbers stand for any number. LIST says what a page needs, and which lines cannot run here:

  [docs/guides/launch.md]
  before: COMMAND           run first, in the page's folder; $PROGRAMS has the programs, $BUILD the build directory
  line: COMMAND             a line of the page, without its comment; ... at the end stands for any rest
  instead: COMMAND          runs in its place
  covered: WHY tests/FILE   it does not run; that test covers it
  covered_page: tests/FILE  that test runs all lines of the page

A line that fails and is not listed is a fault, and so is an entry without a line. Whether they run or not, and in the
text of pages as well, commands and flags of the tool must be those of docs/reference/command_line.md, which a test keeps
equal to what the tool prints, and targets of `make` those of the Makefile.
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tutorials import CMAKE, complaint

BLOCK = re.compile(r'^ *```(\w*)(?: title="([^"]+)")?\n(.*?)^ *```$', re.S | re.M)
# Commands of the wheel's `accelerate-cpp`, in packaging/wheel.
OF_THE_WHEEL = {"demo", "cmake-prefix"}


@dataclass
class Entry:
    line: str
    instead: str = ""
    covered: str = ""
    used: bool = False

    def is_of(self, line):
        return line.startswith(self.line[:-3]) if self.line.endswith("...") else line == self.line


@dataclass
class Listed:
    before: list = field(default_factory=list)
    entries: list = field(default_factory=list)
    covered_page: str = ""


def read_list(path):
    """Returns what the list says, by page."""
    found, page = {}, Listed()
    for line in path.read_text().splitlines():
        key, _, value = line.partition(": ")
        if line.startswith("["):
            page = found[line.strip("[]")] = Listed()
        elif key == "before":
            page.before.append(value)
        elif key == "line":
            page.entries.append(Entry(value))
        elif key in ("instead", "covered"):
            setattr(page.entries[-1], key, value)
        elif key == "covered_page":
            page.covered_page = value
        elif line and not line.startswith("#"):
            sys.exit(f"{path}: not understood: {line}")
    return found


def without_comment(line):
    return re.sub(r"(?:^|\s+)#(?: .*|$)", "", line).strip()


def commands(kind, text):
    """Returns the commands of a block, and the output that it shows."""
    text = re.sub(r" *\\\n\s*", " ", text)
    lines = [line.strip() for line in text.splitlines()]
    shown = ""
    if kind == "console":
        shown = "\n".join(line for line in lines if not line.startswith("$ "))
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in map(without_comment, lines) if line], shown


def tool_flags(page):
    """Returns the flags of each command of the tool, by its name ("checkpoint ls"), and whether they take a value."""
    parts = re.split(r"^## accelerate-cpp ?(.*)$", page.read_text(), flags=re.M)
    flags = {}
    for name, text in zip(parts[1::2], parts[2::2]):
        flags[name] = {}
        for names, value in re.findall(r"^  (-[\w,-]+)( \S)?", text, re.M):
            flags[name].update({flag: bool(value) for flag in names.split(",")})
    return flags


def wrong_flags(name, words, flags):
    for word, following in zip(words, [*words[1:], ""]):
        flag, equals, _ = word.partition("=")
        if name == "launch" and re.match(r"\./|build/|-m$|.*\.py$", word):
            return None                                            # what follows is the program's
        if flag.startswith("-") and flag not in flags[name]:
            return f"accelerate-cpp {name} has no flag {flag}"
        if flag.startswith("-") and not flags[name][flag] and (equals or following in ("true", "false")):
            return f"{flag} of accelerate-cpp {name} takes no value"
    return None


def wrong_use(command, flags, targets):
    """Returns what a command asks of the tool or of make that they do not have; a flag alone is one of `launch`."""
    try:
        words = shlex.split(re.split(r"[|<>;]|&&", command)[0])
    except ValueError:
        return None
    if words and words[0].startswith("-"):
        return wrong_flags("launch", words, flags) if words[0] in flags["launch"] else None
    if len(words) > 1 and words[0] == "make" and re.fullmatch(r"[a-z_-]+", words[1]):
        return None if words[1] in targets else f"make has no target {words[1]}"
    if not words or Path(words[0]).name != "accelerate-cpp" or words[1:2] and words[1] in OF_THE_WHEEL:
        return None
    name, rest = "", words[1:]
    while rest and re.fullmatch("[a-z][a-z0-9-]*", rest[0]):
        longer = f"{name} {rest[0]}".strip()
        if longer not in flags and not name:
            return f"the tool has no command {rest[0]}"
        if longer not in flags:
            break
        name, rest = longer, rest[1:]
    return wrong_flags(name, rest, flags)


def run_page(page, text, listed, build):
    """Runs the lines of a page; returns its faults."""
    script, shown, faults = list(listed.before), [], []
    with tempfile.TemporaryDirectory() as name:
        home, folder = Path(name), Path(name) / "folder"
        (home / "bin").mkdir()
        folder.mkdir()
        (home / "bin/accelerate-cpp").symlink_to(build / "bin/accelerate-cpp")
        for kind, title, body in BLOCK.findall(text):
            if title:
                (folder / title).write_text(body)
            elif kind in ("sh", "bash", "console"):
                lines, output = commands(kind, body)
                entries = [next((entry for entry in listed.entries if entry.is_of(line)), None) for line in lines]
                for line, entry in zip(lines, entries):
                    if entry:
                        entry.used = True
                    command = entry.instead if entry else line
                    if command:
                        script += [f"echo {shlex.quote('$ ' + command)}", command]
                if output and not any(entries):
                    shown.append(output)
        if len(script) > len(listed.before):
            (home / "cmake").write_text(CMAKE.format(programs=build / "bin/examples_by_feature"))
            (home / "cmake").chmod(0o755)
            environment = {**os.environ, "HOME": name, "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "BUILD": str(build),
                           "PROGRAMS": str(build / "bin"), "CMAKE_OF_PAGE": str(home / "cmake"), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(["bash", "-euc", "\n".join(script)], cwd=folder, env=environment, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                faults.append(f"{page}: a line fails\n{done.stdout}")
            faults += [f"{page}: the output lacks: {missing}\n{done.stdout}"
                       for missing in (complaint(output, done.stdout) for output in shown) if missing]
    return faults


def check_page(page, text, listed, root, build, flags, targets):
    faults = []
    blocks = BLOCK.findall(text)
    lines = [line for kind, _, body in blocks if kind in ("sh", "bash", "console") for line in commands(kind, body)[0]]
    inline = re.findall(r"`((?:make |accelerate-cpp |--)[^`]+)`", BLOCK.sub("", text))
    faults += [f"{page}: {wrong}: {line}" for line in lines + inline if (wrong := wrong_use(line, flags, targets))]
    faults += [f"{page}: a shell line in a block of another kind: {line}" for kind, _, body in blocks if kind in ("", "text")
               for line in body.splitlines() if re.match(r" *(?:\$ )?accelerate-cpp ", line) and page != "docs/reference/command_line.md"]
    for reason in [listed.covered_page, *(entry.covered for entry in listed.entries)]:
        if reason and not any((root / path).exists() for path in re.findall(r"(?:tests|tools)/[\w./-]+\w", reason)):
            faults.append(f"{page}: no test that exists: {reason}")
    if not listed.covered_page and "docs/tutorials/" not in page:
        faults += run_page(page, text, listed, build)
        faults += [f"{page}: no such line: {entry.line}" for entry in listed.entries if not entry.used]
    return faults, len(lines)


def main():
    root, build, listed = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), read_list(Path(sys.argv[3]))
    flags = tool_flags(root / "docs/reference/command_line.md")
    targets = set(re.findall(r"^([a-z_-]+):", (root / "Makefile").read_text(), re.M))
    pages = [*root.glob("*.md"), *(page for place in ("docs", "examples", "packaging") for page in (root / place).rglob("*.md"))]
    names = sorted(path.relative_to(root).as_posix() for path in pages)
    faults = [f"no such page: {page}" for page in listed if page not in names]
    count = 0
    for page in sys.argv[4:] or names:
        found, lines = check_page(page, (root / page).read_text(), listed.get(page, Listed()), root, build, flags, targets)
        faults += found
        count += lines
    print(*faults, sep="\n")
    print(f"{count} lines of {len(names)} pages, {len(faults)} faults")
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())
