"""Counts the methods and fields of C++ classes, for check_layers.py."""
import re

# Comments, literals, and preprocessor lines: nothing in them is code.
IGNORED = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n\\]|\\\n|\\.)*', re.DOTALL | re.MULTILINE)
CLASS = re.compile(r"(?<!enum )\b(?:class|struct)\s+(?:ACCELERATE_API\s+)?(?:alignas\([^)]*\)\s*)?([\w:]+)\s*(?:final\s*)?(?::[^:;{}()][^;{}()]*)?\{")
NO_MEMBER = re.compile(r"(using|typedef|friend|enum|class|struct|union|static_assert)\b")


def closing(text, opening):
    """Returns the index of the brace that closes the one at `opening`."""
    depth = 0
    for found in re.compile("[{}]").finditer(text, opening):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
    return len(text) - 1


def declarations(body):
    """Yields the declarations in the body of a class. Each pair of braces is empty."""
    text, at = "", 0
    while at < len(body):
        if body[at] == "{":
            at = closing(body, at)
            text += "{}"
            # Only initialisers and nested types are followed by these.
            if body[at + 1:].lstrip()[:1] not in (";", ","):
                yield text
                text = ""
        elif body[at] == ";":
            yield text
            text = ""
        else:
            text += body[at]
        at += 1


def without_template_arguments(text):
    before = None
    while text != before:
        before, text = text, re.sub(r"(\w)\s*<[^<>]*>", r"\1", text)
    return text


def members(body):
    """Yields the declarations in the body of a class, without access specifiers, attributes, and template arguments."""
    for declaration in declarations(body):
        text = re.sub(r"\b(public|private|protected)\s*:(?!:)|\[\[.*?\]\]|alignas\s*\([^)]*\)", "", declaration, flags=re.DOTALL)
        text = re.sub(r"^\s*template\b", "", without_template_arguments(text)).strip()
        if text and not NO_MEMBER.match(text):
            yield text


def called_in(text):
    """Returns what a declaration of a function declares, or None for a field's: it has no parentheses before its
    initialiser, but those of a pointer to a function."""
    declared = text.split("=")[0]
    found = re.search(r"(~?\w+)\s*\(", declared)
    return found[1] if found and not re.search(r"\(\s*\*", declared) else None


def own_methods(body, name):
    """Returns the names of the methods that a class declares: without constructors, operators, and functions that it has
    from an interface or is one with."""
    methods = []
    for text in members(body):
        method = called_in(text)
        if method and method.lstrip("~") != name and not re.search(r"\b(virtual|override|operator)\b|=\s*(delete|default)$", text):
            methods.append(method)
    return methods


def own_fields(body):
    """Returns the declarations of the fields that an object of a class has of its own."""
    return [text for text in members(body) if not re.search(r"\b(static|operator)\b", text) and not called_in(text)]


def classes(text):
    """Yields (class, its body) for each class that is defined in a file."""
    text = IGNORED.sub(lambda found: '""' if found[0][0] in "\"'R" else " ", text)
    for found in CLASS.finditer(text):
        yield found[1].rpartition("::")[2], text[found.end():closing(text, found.end() - 1)]
