#!/usr/bin/env python3
"""Checks the docs: every relative link leads somewhere; every C++ block that has a main() compiles.

usage: check_docs.py ROOT links
       check_docs.py ROOT programs COMPILER FLAG...

LibTorch's headers take most of the time, so the programs are compiled together: all headers they include first, then
each program in a namespace of its own, where its includes have nothing left to do. A program that fails so is compiled
by itself before it is called broken.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

INCLUDE = re.compile(r"^\s*#\s*include\s*([<\"][^>\"]+[>\"])", re.MULTILINE)


def pages(root):
    return sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md")) + sorted((root / "examples").rglob("*.md"))


def check_links(root):
    count = bad = 0
    for page in pages(root):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            if not (page.parent / target).exists():
                print(f"{page}: no such file: {target}")
                bad += 1
    print(f"{count} links, {bad} broken")
    return bad or not count


def programs(root):
    """(name, page, text) of every C++ block that has a main()."""
    for page in pages(root):
        for block in re.findall(r"```cpp\n(.*?)```", page.read_text(), flags=re.S):
            if "int main(" in block:
                yield page, block


def compile_file(command, path, text):
    path.write_text(text)
    return subprocess.run([*command, "-fsyntax-only", str(path)], capture_output=True, text=True)


def includes_what_it_uses(block):
    """Programs compile together, where one could rely on the includes of another: each must include at least these headers."""
    names = INCLUDE.findall(block)
    return ("torch::" not in block or any("torch/" in n for n in names)) and \
        ("accelerate::" not in block or any("accelerate/" in n for n in names))


def check_programs(root, command):
    found = list(programs(root))
    bad = []
    with tempfile.TemporaryDirectory() as directory:
        headers = dict.fromkeys(name for _, block in found for name in INCLUDE.findall(block))
        together = "".join(f"#include {name}\n" for name in headers)
        for index, (page, block) in enumerate(found):
            together += f'#line 1 "{page}: program {index}"\nnamespace program_{index} {{\n{block}\n}}\n'
        all_compile = compile_file(command, Path(directory) / "together.cpp", together).returncode == 0
        for index, (page, block) in enumerate(found):
            if not includes_what_it_uses(block):
                bad.append(f"{page}: a program uses torch:: or accelerate:: without including their headers")
            elif not all_compile:
                result = compile_file(command, Path(directory) / f"{page.stem}_{index}.cpp", block)
                if result.returncode:
                    bad.append(f"{page}: a program does not compile\n{result.stderr}")
    print(*bad, sep="\n")
    print(f"{len(found)} programs, {len(bad)} do not compile")
    return bad or not found


if __name__ == "__main__":
    root = Path(sys.argv[1])
    sys.exit(1 if (check_links(root) if sys.argv[2] == "links" else check_programs(root, sys.argv[3:])) else 0)
