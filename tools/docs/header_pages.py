"""Writes a page of reference for each public header: its docstrings as text, its declarations as code.

Each type, function and method has a heading, each field and enumerator an anchor, so that a search finds it and a link
leads to it. Names in docstrings link to what they name.
"""
import re
import sys
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import public_interface  # noqa: E402
import public_names  # noqa: E402

# Names as docstrings write them: `backward`, backward(), Model::call(), world.h, CamelCase.
MENTION = re.compile(r"`([A-Za-z_][\w:]*)(\(\))?`|\b([a-z]\w*\.h)\b|(?<![\w`:.])((?:\w+::)*[A-Za-z_]\w*)(\(\))?(?![\w`])")
CAMEL = re.compile(r"(?:[A-Z]\w*){1}[a-z]\w*[A-Z]\w*$|[A-Z]{2,}[a-z]\w*$")


def anchor(qualified):
    return re.sub(r"[^\w.]+", "-", qualified.replace("::", ".").replace("operator()", "call")).strip("-")


class Links:
    """Where each name is described."""

    def __init__(self, names):
        self.headers = {name.header for name in names}
        self.targets = {}
        for name in public_interface.every(names):
            target = f"{name.header.removesuffix('.h')}.md#{anchor(name.qualified)}"
            self.targets.setdefault(name.qualified, target)
            self.targets.setdefault(name.qualified.removeprefix("optim::").removeprefix("safetensors::"), target)

    def find(self, said, scope):
        """The target of a name as said in the docstring of something in `scope`."""
        places = [scope, *(scope.rsplit("::", n)[0] for n in (1, 2))] if scope else []
        for place in places:
            if f"{place}::{said}" in self.targets:
                return self.targets[f"{place}::{said}"]
        return self.targets.get(said)

    def linked(self, text, scope, own):
        def replace(found):
            code, code_call, header, plain, call = found.groups()
            if header:
                target = f"{header.removesuffix('.h')}.md" if header in self.headers else None
            elif code:
                target = self.find(code, scope)
            elif call or "::" in plain or CAMEL.match(plain):
                target = self.find(plain, scope)
            else:
                return found[0]
            return f"[{found[0]}]({target})" if target and target != own else found[0]

        return MENTION.sub(replace, text)


class Page:
    def __init__(self, links, source, path):
        self.links, self.source, self.path = links, source, path
        self.lines = []

    def add(self, *lines):
        self.lines += [*lines, ""]

    def text(self, name, text=None, indent=""):
        """A docstring as Markdown."""
        own = f"{self.path.stem}.md#{anchor(name.qualified)}"
        scope = name.qualified if name.is_type() else name.qualified.rpartition("::")[0]
        made, before = [], ""
        for line in (text or name.text).splitlines():
            is_item = re.match(r"[*-] ", line)
            if is_item and before.strip() and not re.match(r"[*-] |  ", before):
                made.append("")
            before = line
            if line.startswith("    "):
                made.append(line)
                continue
            parts = re.split(r"(`[^`]*`)", line)
            parts[::2] = [re.sub(r"(?<=[ (])\*(?=[ ,.)])", r"\\*", part).replace("<", "&lt;") for part in parts[::2]]
            made.append("".join(parts))
        paragraphs = "\n".join(made).split("\n\n")
        made = [each if each.startswith("    ") else self.links.linked(each, scope, own) for each in paragraphs]
        return "\n".join(indent + line if line else "" for line in "\n\n".join(made).splitlines())

    def code(self, declarations):
        self.add("```cpp", *"\n".join(declarations).splitlines(), "```")

    def group(self, line):
        """The comment that heads the group of fields to which that of a line belongs, if it has one."""
        lines = self.source.lines
        while line > 1 and not lines[line - 1].rstrip().endswith("{"):
            if re.match(r"\s*//(?!/)", lines[line - 1]) and not lines[line].strip():
                first = line
                while re.match(r"\s*//(?!/)", lines[first - 2]):
                    first -= 1
                return " ".join(re.sub(r"^\s*// ?", "", each) for each in lines[first - 1:line])
            line -= 1
        return ""

    def fields(self, fields):
        """Fields or enumerators as a list of definitions."""
        before = None
        for name in fields:
            group = self.group(name.line)
            if group and group != before:
                self.add(f"*{group.replace('*', '')}*")
            before = group
            default = f" = {name.default}" if name.default and name.default != "{}" else ""
            declared = f'`{name.name}`{{ #{anchor(name.qualified)} }}'
            declared += f" <code>{(name.type + default).replace('<', '&lt;')}</code>" if name.type else ""
            self.add(declared, ":   " + self.text(name, indent="    ").lstrip())

    def functions(self, functions):
        """Functions as headings, overloads under one."""
        for _, group in groupby(functions, key=lambda name: name.qualified):
            same = list(group)
            title = "Constructors" if same[0].qualified.endswith(f"{same[0].name}::{same[0].name}") else same[0].name
            self.add(f"### {title.replace('*', chr(92) + '*')} {{ #{anchor(same[0].qualified)} }}")
            pending = []
            for name in same:                                       # an undocumented overload belongs to the one above
                if name.text and pending:
                    self.described(pending)
                    pending = []
                pending.append(name)
            self.described(pending)

    def described(self, functions):
        self.code([name.declaration + (";" if len(functions) > 1 else "") for name in functions])
        for name in functions:
            if name.text:
                self.add(self.text(name))
        if functions[0].protected:
            self.add("For derived classes.")

    def type(self, name):
        self.add(f"## {name.qualified} {{ #{anchor(name.qualified)} }}")
        values = [value for value in name.members if value.kind == "enumvalue"]
        plain = bool(values) and not any(value.text for value in values)
        self.code([name.declaration + (" { " + ", ".join(value.name for value in values) + " };" if plain else "")])
        if name.text:
            self.add(self.text(name))
        bases = [base for base in re.findall(r"public (?:virtual )?([\w:]+)", name.declaration) if self.links.find(base, "")]
        if bases:
            self.add("Also has the members of " + ", ".join(f"[{base}]({self.links.find(base, '')})" for base in bases) + ".")
        members = [each for each in name.members if not each.is_type()]
        self.fields([each for each in members if each.kind == "variable" or each.kind == "enumvalue" and not plain])
        for each in members:
            if each.kind == "typedef":
                self.add(f"### {each.name} {{ #{anchor(each.qualified)} }}")
                self.described([each])
        self.functions([each for each in members if each.kind == "function"])
        for each in name.members:
            if each.is_type():
                self.type(each)

    def head(self):
        self.add(f"# {self.path.name}")
        self.add("```cpp", f"#include <accelerate/{self.path.name}>", "```")
        text = self.source.lines
        first = next((at for at, line in enumerate(text) if re.match(r"(inline )?namespace|//", line)), len(text))
        said = []
        while first < len(text) and text[first].startswith("//"):
            said.append(re.sub(r"^///? ?", "", text[first]))
            first += 1
        if said:
            nameless = public_interface.Name("file", "", "", self.path.name, 0)
            self.add(self.text(nameless, "\n".join(said)))


def pages(root):
    """Returns the text of a page by header, and what they describe."""
    names = public_interface.read(root)
    links = Links(names)
    made = {}
    for headers in public_names.SUBJECTS.values():
        for header in headers:
            path = root / f"include/accelerate/{header}.h"
            if not path.exists():                                   # public_names reports it
                continue
            page = Page(links, public_interface.Source(path), path)
            page.head()
            own = [name for name in names if name.header == path.name]
            for _, group in groupby(own, key=lambda name: name.qualified):
                same = list(group)
                if same[0].is_type():
                    page.type(same[0])
                    continue
                page.add(f"## {same[0].qualified.replace('*', chr(92) + '*')} {{ #{anchor(same[0].qualified)} }}")
                page.described(same)
            made[header] = "\n".join(page.lines)
    return made, names


def write(root, directory):
    """Writes a page per header, links the index to them, and returns [(subject, [page file])]."""
    directory.mkdir(parents=True, exist_ok=True)
    made, _ = pages(root)
    for header, text in made.items():
        (directory / f"{header}.md").write_text(text)
    index = directory.parent / "names.md"
    index.write_text(re.sub(
        r"^\| `([\w:]+)` \| `(\w+)\.h` \|",
        lambda found: f"| [`{found[1]}`](headers/{found[2]}.md#{anchor(found[1])}) | `{found[2]}.h` |", index.read_text(), flags=re.M))
    return [(subject, [f"{header}.md" for header in headers]) for subject, headers in public_names.SUBJECTS.items()]


def problems(root):
    """Yields a line for each public name without a docstring, or without a place on a page."""
    made, names = pages(root)
    for name in public_interface.undocumented(names):
        yield f"{name.header}:{name.line}: {name.kind} {name.qualified} has no docstring"
    for name in public_interface.every(names):
        if name.kind != "enumvalue" and f"#{anchor(name.qualified)} " not in made.get(name.header.removesuffix(".h"), ""):
            yield f"{name.header}:{name.line}: {name.kind} {name.qualified} is on no page"


def main():
    """usage: header_pages.py ROOT    fail if a public name has no docstring, or no place on a page"""
    found = list(problems(Path(sys.argv[1]).resolve()))
    print(*found, f"{len(found)} public names and members without documentation", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
