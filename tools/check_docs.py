#!/usr/bin/env python3
"""Checks the docs: every relative link leads somewhere; every C++ block that has a main() compiles.

usage: check_docs.py ROOT links
       check_docs.py ROOT programs COMPILER FLAG...
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def pages(root):
    return sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md")) + sorted((root / "examples").rglob("*.md"))


def check_links(root):
    count = bad = 0
    for page in pages(root):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            if not (page.parent / target).exists():
                print(f"{page}: no such file: {target}")
                bad += 1
    print(f"{count} links, {bad} broken")
    return bad or not count


def check_programs(root, command):
    count = bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for page in pages(root):
            for block in re.findall(r"```cpp\n(.*?)```", page.read_text(), flags=re.S):
                if "int main(" not in block:
                    continue
                count += 1
                source = Path(folder) / f"{page.stem}_{count}.cpp"
                source.write_text(block)
                result = subprocess.run([*command, "-fsyntax-only", str(source)], capture_output=True, text=True)
                if result.returncode:
                    print(f"{page}: a program does not compile\n{result.stderr}")
                    bad += 1
    print(f"{count} programs, {bad} do not compile")
    return bad or not count


if __name__ == "__main__":
    root = Path(sys.argv[1])
    sys.exit(1 if (check_links(root) if sys.argv[2] == "links" else check_programs(root, sys.argv[3:])) else 0)
