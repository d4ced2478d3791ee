#!/usr/bin/env python3
"""Runs the tutorials as a reader would: files of a page are written, its shell lines run in order, in an empty folder.

usage: tutorials.py sources DIRECTORY PAGE...       write the pages' C++ files, and print the programs among them
       tutorials.py run PAGE TOOL PROGRAMS PYTHON   run a page with programs that were built together
       tutorials.py build PAGE BUILD PYTHON         the same after `cmake --install BUILD`, compiled as the page says

A block is a file if it has a title, and run if it is of kind `sh`. The lines of a `text` block must be in the output of
what ran before it, in order; numbers in them stand for any number. A page with Python needs torch and Accelerate in
PYTHON, and is skipped otherwise (77).
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.S | re.M)
# In place of `cmake`: links what CMakeLists.txt names to the programs that were built together.
CMAKE = """#!/bin/sh
mkdir -p build
for name in $(sed -n 's/^add_executable(\\([a-z_]*\\) .*/\\1/p' CMakeLists.txt); do ln -sf {programs} build/$name; done
"""


def blocks(page):
    return BLOCK.findall(Path(page).read_text())


def write_sources(directory, pages):
    directory.mkdir(parents=True, exist_ok=True)
    for page in pages:
        for kind, title, text in blocks(page):
            if kind == "cpp" and title:
                path = directory / title
                if not path.exists() or path.read_text() != text:
                    path.write_text(text)
                if "int main(" in text:
                    print(path)


def complaint(expected, output):
    """Returns the first line that the output lacks."""
    rest = output
    for line in expected.splitlines():
        pattern = re.sub(r"\d+(?:\\\.\d+)?", r"[0-9.e-]+", re.escape(line.strip()))
        found = re.search(rf"^(?:\[\d+\] )?\s*{pattern}\s*$", rest, re.M)
        if not found:
            return line
        rest = rest[found.end():]
    return None


def run(page, environment):
    """Runs a page in the current directory, which its lines may change."""
    directory, output = Path.cwd(), ""
    where = Path(environment["HOME"]) / "where"
    for kind, title, text in blocks(page):
        if title:
            (directory / title).write_text(text)
        elif kind == "sh":
            print(*(f"$ {line}" for line in text.splitlines()), sep="\n", flush=True)
            done = subprocess.run(["bash", "-ec", f"{text}\npwd >'{where}'"], cwd=directory, env=environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            output = done.stdout
            print(output, flush=True)
            if done.returncode:
                sys.exit(f"{page}: a line fails")
            directory = Path(where.read_text().strip())
        elif kind == "text" and output:
            missing = complaint(text, output)
            if missing:
                sys.exit(f"{page}: the output lacks: {missing}")


def main():
    mode, page, *rest = sys.argv[1:]
    if mode == "sources":
        return write_sources(Path(page), rest)
    python, page = rest[-1], str(Path(page).resolve())
    needs_python = any(kind == "python" for kind, _, _ in blocks(page))
    if needs_python and subprocess.run([python, "-c", "import torch, accelerate"], capture_output=True).returncode:
        print("Python has no torch and Accelerate")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as home:
        local, folder = Path(home) / ".local", Path(home) / "folder"
        folder.mkdir()
        if mode == "build":
            subprocess.run(["cmake", "--install", rest[0], "--prefix", local], check=True, stdout=subprocess.DEVNULL)
        else:
            (local / "bin").mkdir(parents=True)
            (local / "bin/accelerate-cpp").symlink_to(Path(rest[0]).resolve())
            (local / "bin/cmake").write_text(CMAKE.format(programs=Path(rest[1]).resolve()))
            (local / "bin/cmake").chmod(0o755)
        if needs_python:
            # Not a link: an environment's Python looks for its packages beside itself.
            (local / "bin/python3").write_text(f'#!/bin/sh\nexec "{shutil.which(python)}" "$@"\n')
            (local / "bin/python3").chmod(0o755)
        os.chdir(folder)
        run(page, {**os.environ, "HOME": home, "PATH": f"{local / 'bin'}:{os.environ['PATH']}"})
    print("all as expected")


if __name__ == "__main__":
    main()
