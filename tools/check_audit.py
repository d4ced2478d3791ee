#!/usr/bin/env python3
"""Checks the two lists of tests/audit.

findings.txt: one line per flaw that an audit found, `what was found: SUITE.NAME ...`, with the tests that would fail
again; each must exist.

settings/ROOM.txt: every setting is known to do something. One line per field of a public option struct and per key of
the launcher's option table, which names

  test SUITE.NAME ...   the tests that show the effect (each must exist; * stands for the rest of a name)
  refused "TEXT"        the error that asking for it gives; some source has the text
  reported              it has no effect here and is reported; of a key, the option table says so, of a field, a test
                        of the reports names it
  launcher              consumed by the command line tool itself; `test` lines are better

A key that the table says nobody here acts on must be reported or refused, and no other key may be reported.

usage: check_audit.py ROOT            check
       check_audit.py ROOT --missing  print a line for each setting without one
"""
import re
import sys
from pathlib import Path

STRUCT = re.compile(r"^struct (?:ACCELERATE_API )?(\w*(?<!With)(?:Options|Configuration|Config|Policy|Schedule)) \{$")
FIELD = re.compile(r"(?:^|\s)(\w+)(?:\s*=[^;]*|\{[^;]*\})?;(?:\s*///<.*)?$")
KEY = re.compile(r'^\s*\{\s*"([a-z0-9_]+)"|\.key = "([a-z0-9_]+)"')
# The values of OptionUse, and whether the option then has no effect in a program of this library.
USES = {"acts": False, "launches": False, "carried": True, "python_only": True, "nobody": True}
# Tests whose tables name what is reported.
REPORTS = ["reported_fields_test.cpp", "ignored_options_test.cpp"]


def struct_fields(header):
    """`Struct.field` of every public option struct in a header."""
    inside, pending, depth = None, "", 0
    for line in header.read_text().splitlines():
        found = STRUCT.match(line)
        if found:
            inside, pending = found[1], ""
            continue
        if inside is None:
            continue
        if line.startswith("};"):
            inside = None
            continue
        text = re.sub(r"//.*", "", line).strip()
        depth += text.count("{") - text.count("}")
        pending = f"{pending} {text}".strip()
        if depth == 0 and pending.endswith(("}", ";")) and text:
            # A function has parentheses before any initialiser.
            if not re.match(r"[^={]*\(", re.sub(r"std::function<.*?>\s", "", pending)) and not pending.startswith(("using", "friend")):
                name = FIELD.search(pending)
                if name and name[1] != "operator":
                    yield f"{inside}.{name[1]}"
            pending = ""


def option_uses(root):
    """The OptionUse of each key of the option table; None for a row that names none."""
    uses = {}
    for table in sorted((root / "src/config/options").glob("options_*.cpp")):
        key = None
        for line in table.read_text().splitlines():
            if found := KEY.match(line):
                key = found[1] or found[2]
                uses.setdefault(key, None)
            if key and uses[key] is None:
                words = re.findall(r"\w+", re.sub(r'"(?:[^"\\]|\\.)*"', "", line))
                uses[key] = next((word for word in words if word in USES), None)
    return uses


def settings(root):
    found = []
    for header in sorted((root / "include/accelerate").glob("*.h")):
        found += struct_fields(header)
    found += [f"key {key}" for key in option_uses(root)]
    return list(dict.fromkeys(found))


def report_complaint(setting, kind, uses, reports):
    """What contradicts a line of this kind; None if nothing does."""
    name = setting.rpartition(" ")[2].rpartition(".")[2]
    if not setting.startswith("key "):
        is_named = re.search(rf'"(?:[\w.]+\.)?{name}(?:_\w+)?\b[^"]*"', reports)
        return None if kind != "reported" or is_named else f"no test of reports names it ({', '.join(REPORTS)})"
    use = uses.get(name)
    if use is None:
        return None
    if kind == "reported" and not USES[use]:
        return f"is not reported: the option table says {use}"
    if kind in ("test", "launcher") and USES[use]:
        return f"is reported: the option table says {use}"
    return None


def known_tests(root):
    names = set()
    for source in (root / "tests").rglob("*.cpp"):
        names |= {f"{suite}.{name}" for suite, name in re.findall(r"\bTEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", source.read_text())}
        names |= {f"{suite}.{name}" for suite, name in re.findall(r"\bRC_GTEST_PROP\(\s*(\w+),\s*(\w+)", source.read_text())}
    for lists in (root / "tests").rglob("CMakeLists.txt"):
        text = lists.read_text()
        names |= set(re.findall(r"NAME ([\w.]+)(?![\w.$])", text))
        for variable, values, body in re.findall(r"foreach\((\w+) ([^)]*)\)(.*?)endforeach", text, re.DOTALL):
            for name in re.findall(r"NAME ([\w.]*\$\{" + variable + r"\}[\w.]*)", body):
                names |= {name.replace(f"${{{variable}}}", value) for value in values.split()}
    return names


def lines_of(root, pattern):
    """(where, what, the rest) of the lists of tests/audit that match."""
    for path in sorted((root / "tests/audit").glob(pattern)):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line and not line.startswith("#"):
                what, _, rest = line.rpartition(": ") if path.name == "findings.txt" else line.partition(": ")
                yield f"{path.relative_to(root / 'tests/audit')}:{number}", what, rest


def missing_tests(names, tests):
    for name in names.split():
        pattern = re.compile(re.escape(name).replace(r"\*", ".*") + "$")
        if not any(pattern.match(test) for test in tests):
            yield name


def complaints(root):
    tests = known_tests(root)
    for where, what, names in lines_of(root, "findings.txt"):
        for name in missing_tests(names, tests):
            yield f"{where}: {what}: there is no test {name}"
        if not what or not names:
            yield f"{where}: name what was found and a test"
    sources = None
    uses = option_uses(root)
    reports = "".join(path.read_text() for name in REPORTS for path in sorted((root / "tests").rglob(name)))
    listed = {}
    for where, setting, how in lines_of(root, "settings/*.txt"):
        if setting in listed:
            yield f"{where}: {setting} is listed twice"
        listed[setting] = how
        kind, _, rest = how.partition(" ")
        if kind == "test":
            for name in missing_tests(rest, tests):
                yield f"{where}: {setting}: there is no test {name}"
            if not rest:
                yield f"{where}: {setting}: names no test"
        elif kind == "refused":
            if sources is None:
                sources = "".join(p.read_text() for d in ("src", "cli", "include") for p in (root / d).rglob("*.[ch]*"))
                sources = re.sub(r'"\s*\n\s*"', "", sources)
            if rest.strip('"') not in sources:
                yield f"{where}: {setting}: no source has the text {rest}"
        elif kind not in ("reported", "launcher"):
            yield f"{where}: {setting}: unknown kind {kind!r}"
        if contradiction := report_complaint(setting, kind, uses, reports):
            yield f"{where}: {setting}: {contradiction}"
    for key, use in uses.items():
        if use is None:
            yield f"key {key}: its row of the option table names no OptionUse"
    present = settings(root)
    for setting in present:
        if setting not in listed:
            yield f"{setting} has no line in tests/audit/settings: name the test that shows its effect"
    for setting in listed:
        if setting not in present:
            yield f"tests/audit/settings lists {setting}, which does not exist"


def main():
    root = Path(sys.argv[1])
    if sys.argv[2:] == ["--missing"]:
        listed = {setting for _, setting, _ in lines_of(root, "settings/*.txt")}
        print("\n".join(f"{setting}: test " for setting in settings(root) if setting not in listed))
        return
    found = list(complaints(root))
    print("\n".join(found))
    print(f"{len(settings(root))} settings, {len(found)} complaints")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
