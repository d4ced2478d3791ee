#!/usr/bin/env python3
"""Checks that no comment begins as a fragment whose subject is elsewhere (CONTRIBUTING.md).

usage: check_words.py [ROOT]; prints every breach and ends with 1 if there is any.
"""
import re
import sys
from pathlib import Path

FRAGMENT = re.compile(r"^\s*///?\s*(Of|Who|Whose|Whoever|So many)\b")
COMMENT = re.compile(r"^\s*///?(\s|$)")


def breaches_in(text):
    """Line numbers and words of comments, or sentences in them, that begin with such a word."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = FRAGMENT.match(line)
        # A line that continues a sentence may begin with any word.
        if found and (not COMMENT.match(before) or re.search(r"(///?|[.:;!?)])\s*$", before)):
            yield number, found[1]
        before = line


def main(root):
    num_files = count = 0
    for directory in ("include", "src", "cli"):
        for path in sorted((root / directory).rglob("*")):
            if path.suffix not in (".h", ".cpp"):
                continue
            num_files += 1
            for number, word in breaches_in(path.read_text()):
                print(f'{path}:{number}: a comment begins with "{word}"; give it its own subject')
                count += 1
    print(f"{num_files} files, {count} fragments")
    return 1 if count or not num_files else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)))
