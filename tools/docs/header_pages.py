"""Writes a page of reference for each public header: its docstrings as text, its declarations as code.

Each name at namespace scope has a heading, so that a search finds it and a link leads to it.
"""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import public_names  # noqa: E402


def blocks(text):
    """Yields (comment lines, declaration lines) of a header, without its detail namespaces and what only compilers need."""
    text = re.sub(r"^namespace detail \{$.*?^\}  // namespace detail$", "", text, flags=re.S | re.M)
    text = re.sub(r"^(?:#.*|(?:inline )?namespace [\w:]+ \{|\}  // namespace .*|(?:class|struct) [\w:]+;)$", "", text, flags=re.M)
    for block in re.split(r"\n\s*\n(?=\S)", text):
        lines = block.strip("\n").splitlines()
        head = 0
        while head < len(lines) and lines[head].startswith("//"):
            head += 1
        yield [re.sub(r"^///? ?", "", line) for line in lines[:head]], lines[head:]


def header_page(path):
    names = public_names.names_of(path)
    short = {name.rsplit("::", 1)[-1]: name for name in names}
    out = [f"# {path.name}", "", f"```cpp\n#include <accelerate/{path.name}>\n```", ""]
    seen = set()
    for comment, code in blocks(path.read_text()):
        while code and not code[-1].strip():
            code.pop()
        if not comment and not code:
            continue
        declared = re.sub(r"//.*", "", "\n".join(code))
        # Names that the block declares at its outermost level; bodies of types are indented or in braces.
        types = re.findall(r"^(?:class|struct|enum class)\s+(?:ACCELERATE_API\s+)?(\w+)", declared, re.M)
        outer = "\n".join(re.findall(r"^\S.*", declared, re.M)) if types else declared
        others = re.findall(r"(\w+)\(|(?:using|concept|constexpr [\w:<>]+) (\w+) =", outer)
        found = [name for name in [*types, *(a or b for a, b in others)] if name in short and name not in seen]
        found = list(dict.fromkeys(found))
        seen.update(found)
        if found:
            out += ["## " + ", ".join(short[name] for name in found), ""]
        if comment:
            out += ["\n".join(comment).replace("<", "&lt;"), ""]
        if code:
            out += ["```cpp", *(line.replace("ACCELERATE_API ", "") for line in code), "```", ""]
    return "\n".join(out), set(short.values()), {short[name] for name in seen}


def write(root, directory):
    """Writes a page per header, and returns [(subject, [page file])]."""
    directory.mkdir(parents=True, exist_ok=True)
    subjects = []
    for subject, headers in public_names.SUBJECTS.items():
        files = []
        for header in headers:
            text, _, _ = header_page(root / f"include/accelerate/{header}.h")
            (directory / f"{header}.md").write_text(text)
            files.append(f"{header}.md")
        subjects.append((subject, files))
    return subjects


def main():
    """usage: header_pages.py ROOT    fail if a public name has no heading"""
    missing = []
    for headers in public_names.SUBJECTS.values():
        for header in headers:
            _, names, shown = header_page(Path(sys.argv[1]) / f"include/accelerate/{header}.h")
            missing += [f"{header}.h: {name} has no heading" for name in sorted(names - shown)]
    print(*missing, f"{len(missing)} names without a heading", sep="\n")
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
