#!/usr/bin/env python3
"""Writes one program that contains several: `together NAME` runs the program NAME, and so does a link to it with that name.

usage: together.py OUTPUT PROGRAM.cpp...

With LibTorch's headers each program takes 7 to 12 CPU seconds to compile alone, and a second or two together with
others. Each is in its own namespace, after all headers. Users compile examples one by one, as their targets do.
"""
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r"^#include ([<\"][^>\"]+[>\"])\n", re.MULTILINE)


def main(output, sources):
    texts = {path.stem: path.read_text() for path in sources}
    headers = dict.fromkeys(header for text in texts.values() for header in INCLUDE.findall(text))
    lines = [f"#include {header}" for header in headers] + ["#include <cstdio>", "#include <string>", "#include <string_view>"]
    for path in sources:
        # A function other than main must say what it returns.
        body = texts[path.stem].rstrip()
        if not body.endswith("}") or "int main(" not in body:
            sys.exit(f"{path}: main() must be the last function")
        body = INCLUDE.sub("\n", body)
        body = re.sub(r"\bint main\(", "static int run(", body)[:-1] + "  return 0;\n}"
        lines.append(f'#line 1 "{path}"\nnamespace program_{path.stem} {{ {body}\n}}')
    lines.append('#line 1 "together.cpp"\nstatic int run(std::string_view name, int argc, char** argv) {')
    for name in texts:
        takes_arguments = re.search(r"\bint main\(int", texts[name]) is not None
        lines.append(f'  if (name == "{name}") return program_{name}::run({"argc, argv" if takes_arguments else ""});')
    names = ", ".join(f'"{name}"' for name in texts)
    lines.append(f"""  static_cast<void>(argc);
  static_cast<void>(argv);
  std::fprintf(stderr, "no such program\\n");
  return 2;
}}
int main(int argc, char** argv) {{
  const std::string path = argv[0];
  const std::string link = path.substr(path.rfind('/') + 1);
  for (const char* name : {{{names}}})
    if (link == name) return run(link, argc, argv);
  return argc > 1 ? run(argv[1], argc - 1, argv + 1) : run("", argc, argv);
}}""")
    Path(output).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], [Path(name) for name in sys.argv[2:]])
