"""Prints a random sample of what readers read: comments, error messages and sentences of pages.

sample_prose.py ROOT [--seed N] [--size N]

A reviewer marks each A (native and clear), B (right, but stiff) or C (to be rewritten); at least 85 % should be A.
"""

import argparse
import pathlib
import random
import re

COMMENT = re.compile(r"(?:^[ \t]*//(?!.*clang-format).*\n)+", re.M)
# A throw of one of the library's errors, up to the end of its message.
ERROR = re.compile(r"Error\(\s*(?:format\(\s*)?((?:\"(?:[^\"\\]|\\.)*\"\s*)+)")
SENTENCE = re.compile(r"(?<=[.:])\s+(?=[A-Z`])")


def comments_of(text):
    for found in COMMENT.finditer(text):
        words = " ".join(line.strip().lstrip("/").strip() for line in found.group().splitlines())
        declaration = text[found.end():].split("\n", 2)[:2]
        if len(words.split()) >= 4:
            yield f"{words}\n      | {' '.join(line.strip() for line in declaration)}"


def errors_of(text):
    for found in ERROR.finditer(text):
        yield "".join(re.findall(r"\"((?:[^\"\\]|\\.)*)\"", found.group(1)))


def sentences_of(text):
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    for paragraph in text.split("\n\n"):
        if paragraph.lstrip().startswith(("#", "|", "<")):
            continue
        for sentence in SENTENCE.split(" ".join(paragraph.split())):
            if len(sentence.split()) >= 5:
                yield sentence


def collect(root):
    kinds = {"comment": [], "error": [], "doc": []}
    sources = [p for d in ("src", "include", "cli") for p in sorted((root / d).rglob("*")) if p.suffix in (".h", ".cpp")]
    for path in sources:
        text = path.read_text()
        name = path.relative_to(root)
        kinds["comment"] += [(name, each) for each in comments_of(text)]
        kinds["error"] += [(name, each) for each in errors_of(text)]
    for path in sorted((root / "docs").rglob("*.md")):
        kinds["doc"] += [(path.relative_to(root), each) for each in sentences_of(path.read_text())]
    return kinds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=20261126)
    parser.add_argument("--size", type=int, default=60)
    options = parser.parse_args()
    chooser = random.Random(options.seed)
    shares = {"comment": 0.5, "error": 0.25, "doc": 0.25}
    for kind, found in collect(options.root).items():
        for name, text in chooser.sample(found, round(options.size * shares[kind])):
            print(f"{kind:8}{name}\n      {text}\n")


if __name__ == "__main__":
    main()
