"""Reads the public interface from the headers: which names there are, by Doxygen; what each says, from the source.

Doxygen (Debian's `doxygen`) finds scopes, members and their lines. Docstrings and declarations are copied from the
headers as written, so that a page shows what a reader of the header sees.
"""
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import public_names  # noqa: E402

SETTINGS = """
INPUT = {include}
FILE_PATTERNS = *.h
RECURSIVE = NO
EXCLUDE_SYMBOLS = accelerate::detail accelerate::*::detail
EXTRACT_ALL = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = ACCELERATE_API=
MARKDOWN_SUPPORT = NO
AUTOLINK_SUPPORT = NO
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
HAVE_DOT = NO
QUIET = YES
WARNINGS = NO
OUTPUT_DIRECTORY = {out}
"""
TYPES = ("class", "struct", "union", "concept")


@dataclass
class Name:
    """A type, function, field, alias, enumerator or concept that programs may use."""
    kind: str                 # class, struct, concept, enum, enumvalue, function, variable, typedef
    name: str
    qualified: str            # within namespace accelerate
    header: str               # "world.h"
    line: int
    protected: bool = False
    declaration: str = ""
    text: str = ""            # the docstring
    default: str = ""
    type: str = ""
    members: list = field(default_factory=list)

    def is_type(self):
        return self.kind in TYPES or self.kind == "enum"


class Source:
    def __init__(self, path):
        self.lines = path.read_text().splitlines()

    def first_line(self, line):
        """The first line of the declaration that has a name in `line` (both count from 1)."""
        while line > 1:
            above = re.sub(r"\s*///<.*", "", self.lines[line - 2]).strip()
            if not above or above.startswith(("//", "#")) or above.endswith((";", "{", "}", ",")) and not self.is_open(line - 1) \
                    or re.match(r"(public|protected|private):$", above):
                break
            line -= 1
        return line

    def is_open(self, line):
        """Whether a line ends within the parameters of a template or function, so that the next continues it."""
        text = self.lines[line - 1].strip()
        return text.endswith(",") and not re.match(r"\w+( = .*)?,$", text)

    def docstring(self, line):
        found = []
        above = self.first_line(line) - 1
        while above >= 1 and re.match(r"\s*//(?!/)", self.lines[above - 1]):   # a note on the code, below the docstring
            above -= 1
        while above >= 1 and self.lines[above - 1].strip().startswith("///"):
            found.insert(0, re.sub(r"^\s*/// ?", "", self.lines[above - 1]))
            above -= 1
        return "\n".join(found) or self.beside(line)

    def beside(self, line):
        """The comment after a field or enumerator, on the line on which it ends."""
        while line <= len(self.lines):
            code, _, text = self.lines[line - 1].partition("//")
            if text.startswith("/<"):
                return text[2:].strip()
            if not code.rstrip().endswith(("=", "(", "<")):
                return ""
            line += 1
        return ""

    def declaration(self, line, name):
        """The declaration as written, without bodies, initialisers of constructors and what only compilers need."""
        first = self.first_line(line)
        text = "\n".join(self.lines[first - 1:first + 60])
        at = max(0, sum(len(each) + 1 for each in self.lines[first - 1:line - 1]))
        found = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)").search(text, at)
        depth, angle, end = 0, 0, len(text)
        at = found.end() if found else at
        closed = False
        while at < len(text):
            c = text[at]
            if c in "([":
                depth += 1
            elif c in ")]":
                depth -= 1
                closed = closed or depth == 0
            elif c == "{" and depth == 0 and closed:
                end = at
                break
            elif c == "{":
                depth += 1
            elif c == "}":
                depth -= 1
            elif c == ";" and depth == 0 or c == "," and depth < 0:
                end = at
                break
            elif c == ":" and depth == 0 and closed and text[at - 1].isspace():
                end = at
                break
            at += 1
        made = text[:end].rstrip()
        made = re.sub(r"ACCELERATE_API ", "", made)
        made = re.sub(r",?\s*detail::CallSite site(?: = detail::CallSite::current\(\))?", "", made)
        return dedent(made)


def dedent(text):
    lines = text.splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines)


def written(element):
    """The text of a type or default as programs write it."""
    text = "".join(element.itertext()) if element is not None else ""
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"\s*([<>&*])\s*", lambda found: {"&": "&", "*": "*"}.get(found[1], found[1]), text).replace(" ,", ",")


class Reader:
    def __init__(self, root, xml):
        self.include, self.xml = root / "include/accelerate", xml
        self.sources = {}

    def source(self, header):
        if header not in self.sources:
            self.sources[header] = Source(self.include / header)
        return self.sources[header]

    def place(self, element):
        location = element.find("location")
        if element.tag == "compounddef" and location.get("bodystart"):   # not a declaration before the definition
            header, line = Path(location.get("bodyfile")).name, int(location.get("bodystart"))
            name = element.findtext("compoundname").partition("<")[0].rsplit("::", 1)[-1].strip()
            while not re.search(rf"\b{name}\b", self.source(header).lines[line - 1]):
                line -= 1                                       # bases have lines of their own
            return header, line
        path = Path(location.get("declfile") or location.get("file"))
        return path.name, int(location.get("declline") or location.get("line"))

    def is_ours(self, element):
        location = element.find("location")
        return location is not None and Path(location.get("file", "")).parent.name == "accelerate"

    def member(self, element, scope):
        kind, name = element.get("kind"), element.findtext("name")
        header, line = self.place(element)
        source = self.source(header)
        made = Name(kind, name, f"{scope}::{name}" if scope else name, header, line, element.get("prot") == "protected")
        made.text = source.docstring(line)
        made.type = written(element.find("type"))
        made.default = re.sub(r"^= ?", "", written(element.find("initializer")))
        if kind == "enum":
            made.declaration = f"enum class {name}"
            for value in element.findall("enumvalue"):
                # Doxygen says where the enum is, not its values.
                value_line = self.line_of_value(source, line, value.findtext("name"))
                made.members.append(Name("enumvalue", value.findtext("name"), f"{made.qualified}::{value.findtext('name')}", header, value_line,
                                         text=source.docstring(value_line) if value_line != line else ""))
        else:
            made.declaration = source.declaration(line, name)
        return made

    def line_of_value(self, source, line, name):
        for at in range(line, len(source.lines) + 1):
            if re.match(rf"\s*{name}\b", source.lines[at - 1]):
                return at
            if "}" in source.lines[at - 1]:
                return line
        return line

    def is_shown(self, element, scope):
        """Whether programs may use a member: it is neither private, nor made by the compiler, nor of internal types."""
        kind, name, args = element.get("kind"), element.findtext("name"), element.findtext("argsstring") or ""
        if element.get("prot") in ("private", "package") or kind in ("friend", "define") or not self.is_ours(element):
            return False
        own = scope.rsplit("::", 1)[-1]
        if kind == "function":
            if name.startswith("~") or "->" in args.rsplit(")", 1)[-1] and name[0].isupper() or args.endswith(("=default", "=delete")):
                return False
            if name == own and "detail::" in args or name == "operator=" or re.search(r"\boverride\b", args):
                return False
        # The Impl of a holder, and the library's way to what is behind a handle.
        kept = name in ("begin", "end")
        return kept or name != "Impl" and not re.search(r"\bdetail::", written(element.find("type")))

    def members(self, compound, scope):
        """The members of a type or namespace in the order of the headers; nested types come as their own."""
        found = []
        for element in compound.findall("sectiondef/memberdef"):
            if self.is_shown(element, scope):
                found.append(self.member(element, scope))
        for inner in compound.findall("innerclass"):
            if inner.get("prot") in ("public", "protected"):
                made = self.type(inner.get("refid"))
                if made:
                    found.append(made)
        for inner in compound.findall("innerconcept"):
            made = self.type(inner.get("refid"))
            if made:
                found.append(made)
        order = {}
        found = [each for each in found if order.setdefault((each.header, each.line, each.qualified), each) is each]
        return sorted(found, key=lambda each: (each.header, each.line))

    def type(self, refid):
        compound = ElementTree.parse(self.xml / f"{refid}.xml").getroot().find("compounddef")
        qualified = compound.findtext("compoundname").removeprefix("accelerate::")
        if "<" in qualified:                          # a specialisation, of which only CapturedStep's is more than an alias
            qualified = qualified.partition("<")[0].strip()
        if "detail" in qualified.split("::") or not self.is_ours(compound):
            return None
        kind, name = compound.get("kind"), qualified.rsplit("::", 1)[-1]
        header, line = self.place(compound)
        source = self.source(header)
        made = Name(kind, name, qualified, header, line, compound.get("prot") == "protected")
        made.text, made.declaration = source.docstring(line), source.declaration(line, name).split("{")[0].strip()
        if kind != "concept":
            made.members = self.members(compound, qualified)
        return made

    def names(self):
        """The names at the scope of namespaces, in the order of the headers."""
        found = []
        for path in sorted(self.xml.glob("namespaceaccelerate*.xml")):
            compound = ElementTree.parse(path).getroot().find("compounddef")
            scope = compound.findtext("compoundname").removeprefix("accelerate").removeprefix("::")
            if "detail" not in scope.split("::"):
                found += self.members(compound, scope)
        return sorted(found, key=lambda each: (each.header, each.line))


def read(root):
    """Returns the public names of the headers, those of types among their members."""
    if not shutil.which("doxygen"):
        sys.exit("docs: doxygen must be installed (apt-get install doxygen), but is not")
    with tempfile.TemporaryDirectory() as out:
        settings = SETTINGS.format(include=root / "include/accelerate", out=out)
        subprocess.run(["doxygen", "-"], input=settings, text=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        names = Reader(root, Path(out) / "xml").names()
    described = {name.qualified for name in names if name.is_type() and name.text}
    names = [name for name in names if name.text or not name.is_type() or name.qualified not in described]
    declarations = "\n".join(
        re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.M) for path in sorted((root / "include/accelerate").glob("*.h")))
    for name in every(names):
        if name.kind == "struct" and not name.text:
            name.text = public_names.default_text(name.qualified, declarations)
    return names


def every(names):
    for name in names:
        yield name
        yield from every(name.members)


OPERATORS = re.compile(r"operator\s*(?:\*|->|\+\+|==|!=|<=>|bool|<<)$")


def undocumented(names, scope=None):
    """Yields the names without a docstring. Overloads are one name; a type's docstring may speak for its constructors, an
    enumeration's for enumerators that it mentions; operators that do what they do everywhere need none."""
    said = {name.qualified for name in names if name.text}
    for name in {each.qualified: each for each in names if each.qualified not in said}.values():
        spoken_for = scope and scope.text and (
            name.name == scope.name or name.kind == "enumvalue" and re.search(rf"\b{name.name}\b", scope.text))
        if not spoken_for and not OPERATORS.match(name.name):
            yield name
    for name in names:
        if name.is_type():
            yield from undocumented(name.members, name)
