#!/usr/bin/env python3
"""Checks the docs: every relative link, and every path of this repository that a page or a comment names, leads to a file
and its heading; every C++ block with a main() compiles; every case of `make bench` that a page names exists; and every
benchmark program belongs to a case. `prose` checks the form of pages: lines, paragraphs, cells of tables, the changelog
and docs/benchmarks.md have the lengths that docs/develop/extending.md states; with --write, it wraps what can be wrapped.

usage: check_docs.py ROOT links
       check_docs.py ROOT cases
       check_docs.py ROOT prose [--write]
       check_docs.py ROOT programs COMPILER FLAG...
       check_docs.py --strict    everything but programs, in this repository, and every public name has a docstring, with
                                 the members of types (needs doxygen)

LibTorch's headers take most of the time, so the programs are compiled together: first all headers they include, then
each program in its own namespace, where its includes have no effect. If this fails, each program is compiled alone before
it is reported as broken.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

INCLUDE = re.compile(r"^\s*#\s*include\s*([<\"][^>\"]+[>\"])", re.MULTILINE)


def pages(root):
    return sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md")) + sorted((root / "examples").rglob("*.md"))


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)


def anchors(page):
    """Returns the anchors of a page: those that GitHub makes for its headings, and those it defines itself."""
    found, seen = set(), {}
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for heading in re.findall(r"^#+ +(.+?) *#*$", text, flags=re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{number}" if number else slug)
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def links(page):
    """Yields (target, anchor) of every relative link of a page."""
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", without_code(page.read_text())):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


SOURCES = ["include", "src", "cli", "libexec", "examples", "tests", "benchmarks", "tools", "cmake"]
PATH = re.compile(r"(?<![\w/.-])((?:docs|%s)/[\w/.-]+\.(?:md|h|cpp|py|sh|cmake|json|txt|svg))\b(?:#([\w-]+))?" % "|".join(SOURCES))


def mentions(root):
    """Yields (file, path, anchor) of every file of the repository that a page or a code comment names by its path."""
    for page in pages(root):
        for found in PATH.finditer(re.sub(r"\]\([^)]*\)", "]", page.read_text())):
            yield page, found[1], found[2] or ""
        if "develop" in page.parts:
            for found in re.findall(r"`((?!torch/)[\w.-]+/[\w./-]+\.(?:h|cpp|py|cmake))`", page.read_text()):
                places = [found, *(f"{place}/{found}" for place in ("src", "include", "include/accelerate", "tests"))]
                yield page, next((place for place in places if (root / place).exists()), found), ""
    for directory in SOURCES:
        for ending in ("h", "cpp", "py", "cmake", "sh"):
            for path in sorted((root / directory).rglob(f"*.{ending}")):
                # Skips lists of names, and files made for a test.
                if {"planted", "bad", "data"} & set(path.relative_to(root).parts):
                    continue
                for line in path.read_text().splitlines():
                    comment = re.search(r"(?://|#(?!include)).*", line)
                    for found in PATH.finditer(comment[0]) if comment else []:
                        yield path, found[1], found[2] or ""


def check_links(root):
    of_page = {page: anchors(page) for page in pages(root)}
    targets = [(page, page.parent / path if path else page, path, anchor) for page in of_page for path, anchor in links(page)]
    targets += [(file, root / path, path, anchor) for file, path, anchor in mentions(root)]
    bad = 0
    for file, target, path, anchor in targets:
        if not target.exists():
            print(f"{file}: no such file: {path}")
        elif anchor and target.suffix == ".md" and anchor not in of_page.get(target.resolve(), anchors(target)):
            print(f"{file}: no such heading: {path}#{anchor}")
        else:
            continue
        bad += 1
    print(f"{len(targets)} links, {bad} broken")
    return bad or not targets


def programs(root):
    """Yields (page, text) of every C++ block with a main()."""
    for page in pages(root):
        for block in re.findall(r"```cpp\n(.*?)```", page.read_text(), flags=re.S):
            if "int main(" in block:
                yield page, block


def compile_file(command, path, text):
    path.write_text(text)
    return subprocess.run([*command, "-fsyntax-only", str(path)], capture_output=True, text=True)


def includes_what_it_uses(block):
    """Returns whether a program includes headers of the libraries it uses; compiled together, it could rely on another's."""
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


def check_cases(root):
    text = (root / "tools/bench").read_text()
    cases = set(re.search(r"^cases=\((.*)\)$", text, flags=re.M)[1].split())
    programs = set().union(*(set(names.split()) for names in re.findall(r"programs=\(([^)$]*)\)", text))) | cases
    cases |= set(re.findall(r'"\$chosen" != (\w+) \] \|\| \{ measure', text))
    alone = set(re.findall(r'"\$chosen" != (\w+) \] \|\| cases=', text))
    cases |= alone
    programs |= alone
    bad = []
    for page in pages(root):
        named = re.findall(r"\bCASE=([a-z]\w*)", page.read_text())
        if page == root / "docs/benchmarks.md":
            listed = [case for row in re.findall(r"^\| ([a-z]\w*(?:, \w+)*) \|", page.read_text(), flags=re.M)
                      for case in row.split(", ") if case != "case"]
            named += listed
            bad += [f"{page}: does not list the case {case}" for case in sorted(cases - set(listed))]
        bad += [f"{page}: no such case of make bench: {case}" for case in sorted(set(named) - cases)]
    for source in sorted((root / "benchmarks").glob("*.cpp")):
        if source.stem not in programs and "int main(" in source.read_text():
            bad.append(f"{source}: no case of make bench runs it")
    print(*bad, sep="\n")
    print(f"{len(cases)} cases, {len(bad)} mistakes")
    return bad or not cases


COLUMNS = 120
PARAGRAPH_WORDS = 120
CELL_WORDS = 30
RELEASE_LINES = 60
BENCHMARK_ROWS = 50
# Pages that programs of this repository write.
GENERATED = {f"docs/reference/{name}.md" for name in ("names", "command_line", "options", "config_questions")}
MARKER = re.compile(r"(?:[*+-]|\d+\.) +")
# Words that would begin a list, heading, quotation or table at the start of a line.
BEGINS_BLOCK = re.compile(r"([*+-]|\d+[.)]|#+|>.*|\|.*|=+|-+)$")


def blocks(text):
    """Yields (line number, lines) of what lies between blank lines; headings and lines in fences come alone, tables by row."""
    lines, first, fence = [], 0, None
    for number, line in enumerate([*text.splitlines(), ""], 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        alone = fence or mark or line.startswith("#") or line.lstrip().startswith("|")
        if lines and (alone or not line.strip()):
            yield first, lines
            lines = []
        if alone:
            yield number, [line] if not (fence or mark) else []
        elif line.strip():
            first, lines = (first, lines) if lines else (number, [])
            lines.append(line)
        if mark:
            fence = None if fence and mark[1].startswith(fence) else fence or mark[1]


def items(lines):
    """Returns the paragraphs of a block, as lists of lines: one, or one per item of a list."""
    found = [[]]
    for line in lines:
        if MARKER.match(line.lstrip()) and found[-1]:
            found.append([])
        found[-1].append(line)
    return found


def words_in(lines):
    return sum(len(MARKER.sub("", line.lstrip(), count=1).split()) for line in lines)


def wrapped(lines):
    """Returns a paragraph's lines filled up to COLUMNS; code spans stay on one line."""
    start = re.match(r"( *)((?:[*+-]|\d+\.) +)?", lines[0])
    words = re.findall(r"(?:`[^`]*`|[^\s`])+", " ".join(line.strip() for line in lines)[len(start[2] or ""):])
    indent = " " * len(start[0])
    made = [start[0] + words[0]]
    for word in words[1:]:
        if len(made[-1]) + 1 + len(word) <= COLUMNS or BEGINS_BLOCK.match(word):
            made[-1] += " " + word
        else:
            made.append(indent + word)
    return made


def wrap(text):
    """Returns a page with its long lines wrapped, and blank lines between the items of long lists."""
    made = text.splitlines()
    for first, lines in reversed([block for block in blocks(text) if block[1] and not block[1][0].startswith(("#", "|"))]):
        parts = items(lines)
        filled = [wrapped(part) if any(len(line) > COLUMNS for line in part) else part for part in parts]
        between = [""] if len(parts) > 1 and words_in(lines) > PARAGRAPH_WORDS else []
        made[first - 1:first - 1 + len(lines)] = sum((part + between for part in filled[:-1]), []) + filled[-1]
    return "\n".join(made) + "\n"


def faults_of_prose(page, name):
    """Yields (line number, complaint) for each line, paragraph and cell of a page that is too long."""
    for first, lines in blocks(page.read_text()):
        if lines and lines[0].lstrip().startswith("|"):
            cells = re.split(r"(?<!\\)\|", lines[0].strip().strip("|"))
            longest = max(len(cell.split()) for cell in cells)
            if longest > CELL_WORDS and not name.startswith("docs/reference/"):
                yield first, f"a cell has {longest} words; at most {CELL_WORDS}: put the rest below the table"
        elif lines and not lines[0].startswith("#"):
            if words_in(lines) > PARAGRAPH_WORDS:
                yield first, f"a paragraph has {words_in(lines)} words; at most {PARAGRAPH_WORDS}: split it where the subject changes"
            if any(len(line) > COLUMNS for part in items(lines) for line in wrapped(part)) != any(len(line) > COLUMNS for line in lines):
                yield first, f"a line has {max(map(len, lines))} columns; at most {COLUMNS}: check_docs.py . prose --write wraps it"


def faults_of_changelog(text):
    """Yields (line number, complaint) where a release has too many lines, or an entry more than one line or too many words."""
    release, count = 0, 0
    for number, line in enumerate([*text.splitlines(), "## "], 1):
        if line.startswith("## "):
            if count > RELEASE_LINES:
                yield release, f"a release has {count} lines; at most {RELEASE_LINES}"
            release, count = number, 0
        count += bool(line.strip())
        if line.startswith("  ") or len(line.split()) > CELL_WORDS and line.startswith("* "):
            yield number, f"an entry of the changelog is one line of at most {CELL_WORDS} words"


def faults_of_benchmarks(text):
    """Yields (line number, complaint) if the tables of figures, which have eight columns, have too many rows."""
    rows = [number for number, line in enumerate(text.splitlines(), 1)
            if line.startswith("| ") and line.count("|") == 9 and not line.startswith(("| case |", "| --- |"))]
    if len(rows) > BENCHMARK_ROWS:
        yield rows[BENCHMARK_ROWS], f"the page has {len(rows)} figures; at most {BENCHMARK_ROWS}"


def check_prose(root, write=False):
    found = [page for page in pages(root) + sorted((root / "tests").rglob("*.md"))
             if page.relative_to(root).as_posix() not in GENERATED and not {"planted", "fragments"} & set(page.relative_to(root).parts)]
    bad = []
    for page in found:
        name = page.relative_to(root).as_posix()
        if write and name != "CHANGELOG.md":
            page.write_text(wrap(page.read_text()))
        faults = faults_of_changelog(page.read_text()) if name == "CHANGELOG.md" else faults_of_prose(page, name)
        faults = [*faults, *(faults_of_benchmarks(page.read_text()) if name == "docs/benchmarks.md" else [])]
        bad += [f"{page}:{line}: {complaint}" for line, complaint in sorted(faults)]
    print(*bad, sep="\n")
    print(f"{len(found)} pages, {len(bad)} faults")
    return bad or not found


def check_strict(root):
    import public_names
    sys.path.insert(0, str(root / "tools/docs"))
    import header_pages
    problems = [*public_names.page(root)[1], *header_pages.problems(root)]
    print(*problems, f"{len(problems)} public names and members without documentation", sep="\n")
    return any([check_links(root), check_cases(root), check_prose(root), problems])


if __name__ == "__main__":
    if sys.argv[1:] == ["--strict"]:
        sys.exit(check_strict(Path(__file__).resolve().parent.parent))
    if len(sys.argv) < 3 or sys.argv[2] not in ("links", "cases", "prose", "programs"):
        sys.exit(__doc__)
    root = Path(sys.argv[1])
    checks = {"links": check_links, "cases": check_cases, "prose": lambda root: check_prose(root, "--write" in sys.argv)}
    sys.exit(1 if (checks[sys.argv[2]](root) if sys.argv[2] in checks else check_programs(root, sys.argv[3:])) else 0)
