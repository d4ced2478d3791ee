"""Prints the files per directory and the longest functions, to make growth visible; called by check_layers.py. Never fails."""
import re
from collections import Counter

NUM_FOLDERS = 8
NUM_FUNCTIONS = 12
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
