#!/usr/bin/env python3
"""Prints the files per directory, the longest functions and the template lines of public headers, to make growth visible.

usage: growth.py ROOT    (the template lines only; check_layers.py prints the rest as well)

Never fails. Template lines are the lines of code, without comments and blank lines, from `template` to the end of the body of
a function template or class template (a specialisation, a member and a definition outside of its class as well) in
include/accelerate: what every file of a program compiles. Declarations without a body count 0. Concepts, variable templates
and alias templates are counted apart.
"""
import re
import sys
from collections import Counter
from pathlib import Path

NUM_FOLDERS = 8
NUM_FUNCTIONS = 12
NUM_HEADERS = 15
DIRECTORY_GLANCE = 24  # a dozen pairs of .cpp and .h
FUNCTION_SCREEN = 60

SKIPPED = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*', re.S | re.M)
TYPE = re.compile(r"\b(namespace|class|struct|enum|union|extern)\b(?![^(]*\()")
NAME = re.compile(r"([\w:~]+|operator\s*\S+?)\s*\(")
NOT_NAMES = {"if", "for", "while", "switch", "catch", "requires", "decltype", "alignas", "noexcept", "ACCELERATE_API"}


def functions_in(text):
    """Yields (lines, name, first line) of each outermost function body, found by braces: accurate enough for a list."""
    code = SKIPPED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    head_begin, depth_in_function, begin, name = 0, 0, 0, ""
    for found in re.finditer(r"[{};]", code):
        at, mark = found.start(), found[0]
        if depth_in_function:
            depth_in_function += {"{": 1, "}": -1, ";": 0}[mark]
            if depth_in_function == 0:
                yield code.count("\n", begin, at) + 1, name, code.count("\n", 0, begin) + 1
        elif mark == "{":
            head = code[head_begin:at]
            names = [n for n in NAME.findall(head) if n not in NOT_NAMES]
            if names and not TYPE.search(head) and "=" not in head.split("(")[0].replace("operator=", "").replace("operator==", ""):
                depth_in_function, name = 1, names[0]
                begin = head_begin + len(head) - len(head.lstrip())
        head_begin = at + 1


TEMPLATE = re.compile(r"(?<![.>:\w])template\s*<")
MARKS = re.compile(r"[<>(){}\[\];]")
REQUIRES_EXPRESSION = re.compile(r"\brequires\s*$")


def end_of_parameters(code, at):
    """Returns the position after the `>` that belongs to the `<` at `at`. Parameters compare nothing."""
    depth = 0
    for found in MARKS.finditer(code, at):
        depth += {"<": 1, ">": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(code)


def without_last_parentheses(head):
    """Returns `head` without a group of parentheses at its end, if there is one."""
    head = head.rstrip()
    depth = 0
    for at in range(len(head) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(head[at], 0)
        if depth == 0:
            return head[:at] if head[at] == "(" else head
    return head


def end_of_template(code, begin):
    """Returns (end, whether it has a body) of the declaration that begins after the template's parameters at `begin`."""
    depth, has_body, is_expression = 0, False, False
    for found in MARKS.finditer(code, begin):
        mark, at = found[0], found.start()
        if mark == "{" and depth == 0:
            is_expression = bool(REQUIRES_EXPRESSION.search(without_last_parentheses(code[begin:at])))
            has_body = has_body or not is_expression
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(mark, 0)
        if depth == 0 and mark == ";":
            return found.end(), has_body
        if depth == 0 and mark == "}" and not is_expression:
            rest = code[found.end():].lstrip()[:1]
            if rest not in tuple(";,{"):
                return found.end(), has_body
    return len(code), has_body


def template_lines(text):
    """Returns the lines of code of templates with a body, and those of concepts, variables and aliases."""
    def blank(found):
        is_literal = found[0][0] in "\"'R"
        return re.sub(r"[^\n]", "0" if is_literal else " ", found[0])

    code = SKIPPED.sub(blank, text)
    is_code = [bool(line.strip()) for line in code.split("\n")]
    bodies, others, at = set(), set(), 0
    while found := TEMPLATE.search(code, at):
        begin = end_of_parameters(code, found.end() - 1)
        is_other = re.match(r"\s*(concept|using|(inline\s+|static\s+)*constexpr\s+[\w:]+\s+\w+(<[^()]*>)?\s*=)", code[begin:])
        at, has_body = end_of_template(code, begin)
        if is_other or has_body:
            first, last = code.count("\n", 0, found.start()), code.count("\n", 0, at)
            (others if is_other else bodies).update(line for line in range(first, last + 1) if is_code[line])
    return len(bodies), len(others - bodies)


def report_templates(root):
    headers = {path: template_lines(path.read_text()) for path in sorted((root / "include/accelerate").rglob("*.h"))}
    total, others = (sum(lines[i] for lines in headers.values()) for i in (0, 1))
    print(f"template lines of public headers: {total}, and {others} of concepts, variable templates and aliases")
    for path, lines in sorted(headers.items(), key=lambda item: -item[1][0])[:NUM_HEADERS]:
        print(f"  {lines[0]:4} {path.relative_to(root / 'include/accelerate')}")


def report(root, paths):
    per_directory = Counter(path.parent.relative_to(root).as_posix() for path in paths)
    longest = sorted(
        ((lines, name, f"{path.relative_to(root)}:{line}") for path in paths for lines, name, line in functions_in(path.read_text())),
        reverse=True,
    )
    print(f"files per directory (more than {DIRECTORY_GLANCE} no longer fit a glance):")
    for directory, count in per_directory.most_common(NUM_FOLDERS):
        print(f"  {count:4} {directory}")
    print(f"longest functions ({sum(1 for f in longest if f[0] > FUNCTION_SCREEN)} of {len(longest)} above {FUNCTION_SCREEN} lines):")
    for lines, name, place in longest[:NUM_FUNCTIONS]:
        print(f"  {lines:4} {name} {place}")
    report_templates(root)


if __name__ == "__main__":
    report_templates(Path(sys.argv[1]))
