#!/usr/bin/env python3
"""Writes one program that holds all examples of a directory: `together NAME` runs the example NAME.

usage: together.py OUTPUT EXAMPLE.cpp...

With LibTorch's headers each example takes some 12 CPU seconds to compile by itself, and a second together with others.
Each is in a namespace of its own, behind all headers; users compile them one by one, as their targets do.
"""
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r"^#include ([<\"][^>\"]+[>\"])\n", re.MULTILINE)


def main(output, sources):
    texts = {path.stem: path.read_text() for path in sources}
    headers = dict.fromkeys(header for text in texts.values() for header in INCLUDE.findall(text))
    lines = [f"#include {header}" for header in headers] + ["#include <cstdio>", "#include <string_view>"]
    for path in sources:
        # A function other than main must say what it returns.
        body = texts[path.stem].rstrip()
        if not body.endswith("}") or "int main(" not in body:
            sys.exit(f"{path}: main() must be the last function")
        body = INCLUDE.sub("\n", body)
        body = re.sub(r"\bint main\(", "inline int run(", body)[:-1] + "  return 0;\n}"
        lines.append(f'#line 1 "{path}"\nnamespace example_{path.stem} {{ {body}\n}}')
    lines.append('#line 1 "together.cpp"\nint main(int argc, char** argv) {\n  const std::string_view name = argc > 1 ? argv[1] : "";')
    for name in texts:
        takes_arguments = re.search(r"\bint main\(int", texts[name]) is not None
        lines.append(f'  if (name == "{name}") return example_{name}::run({"argc - 1, argv + 1" if takes_arguments else ""});')
    lines.append('  std::fprintf(stderr, "no such example\\n");\n  return 2;\n}')
    Path(output).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], [Path(name) for name in sys.argv[2:]])
