#!/usr/bin/env python3
"""Checks the two lists of tests/audit.

findings.txt: one line per flaw that an audit found, `what was found: SUITE.NAME ...`, with the tests that would fail if
it came back; each must exist.

settings/ROOM.txt: shows that every setting does something. One line per field of a public options struct and per key of
the launcher's option table, which names

  test SUITE.NAME ...   the tests that show the effect (* stands for the rest of a name). Each must exist, and the source
                        of one of them must name the setting: the body of the test, or the code outside other tests
                        in its file or a header beside it. If it cannot, the line ends with `; ` and the reason
  refused "TEXT" test SUITE.NAME ...
                        the error that asking for it gives; some source contains the text, and the source of one of the
                        tests contains the text or names the setting
  reported              it has no effect here and is reported; for a key, the option table says so, and for a field, a
                        test of the reports names it
  launcher              the command line tool itself uses it; `test` lines are better

A key that has no effect according to the table must be reported or refused, and no other key may be reported.

structs.txt: the public structs that hold no options, `Struct: what it is`. Every other struct holds options, whatever its
name: a new struct needs lines in settings/, or a line here.

usage: check_audit.py ROOT            check
       check_audit.py ROOT --missing  print a line for each setting that has none
"""
import re
import sys
from pathlib import Path

STRUCT = re.compile(r"^struct (?:ACCELERATE_API |alignas\(\d+\) )?(\w+)(?: : (?:public )?(\w+))? \{$")
FIELD = re.compile(r"(?:^|\s)(\w+)(?:\s*=[^;]*|\{[^;]*\})?;(?:\s*///<.*)?$")
KEY = re.compile(r'^\s*\{\s*"([a-z0-9_]+)"|\.key = "([a-z0-9_]+)"')
# The option table.
OPTION_ROWS = "src/config/options/option_rows.cpp"
# The values of OptionUse, and whether such an option has no effect in a program of this library.
USES = {"acts": False, "launches": False, "carried": True, "python_only": True, "unused": True}
# Tests whose tables name what is reported.
REPORTS = ["reported_fields_test.cpp", "ignored_options_test.cpp"]


def without_details(header):
    """Yields the lines of a header outside namespace detail and templates."""
    is_detail, is_template = False, False
    for line in header.read_text().splitlines():
        if line.startswith("namespace detail {"):
            is_detail = True
        elif line.startswith("}  // namespace detail"):
            is_detail = False
        elif not is_detail:
            if line.startswith("template"):
                is_template = True
            elif is_template and line.startswith("struct"):
                is_template = False
                continue
            elif line and not line.startswith((" ", "struct")):
                is_template = False
            yield line


def struct_fields(header):
    """Yields (struct, field) for every field of every public struct in a header, and (struct, None) for the struct itself."""
    inside, pending, depth = None, "", 0
    for line in without_details(header):
        found = STRUCT.match(line)
        if found:
            inside, pending = found[1], ""
            yield inside, None
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
                    yield inside, name[1]
            pending = ""


def option_uses(root):
    """Maps each key of the option table to its OptionUse, or to None if its row names none."""
    uses = {}
    key = None
    for line in (root / OPTION_ROWS).read_text().splitlines():
        if found := KEY.match(line):
            key = found[1] or found[2]
            uses.setdefault(key, None)
        if key and uses[key] is None:
            words = re.findall(r"\w+", re.sub(r'"(?:[^"\\]|\\.)*"', "", line))
            uses[key] = next((word for word in words if word in USES), None)
    return uses


def public_fields(root):
    return [pair for header in sorted((root / "include/accelerate").glob("*.h")) for pair in struct_fields(header)]


def structs_without_options(root):
    """Maps the name of each struct in structs.txt to its description."""
    return {what: rest for _, what, rest in lines_of(root, "structs.txt")}


def settings(root):
    others = structs_without_options(root)
    found = [f"{struct}.{field}" for struct, field in public_fields(root) if field and struct not in others]
    found += [f"key {key}" for key in option_uses(root)]
    return list(dict.fromkeys(found))


def report_complaint(setting, kind, uses, reports):
    """Returns what contradicts a line of this kind, or None."""
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


TEST = re.compile(
    r"^(?:TEST(?:_[FP])?|RC_GTEST_PROP)\(\s*(\w+),\s*(\w+)(?:[^\n]*\}$|.*?^\}$)", re.DOTALL | re.MULTILINE
)


def known_tests(root):
    """Maps the name of every test to its source: its body, and the code of its file outside other tests."""
    sources = {}
    for path in (root / "tests").rglob("*.cpp"):
        text = re.sub(r"//.*", "", path.read_text())
        common = TEST.sub("", text)
        # Headers that tests of one directory share.
        for name in re.findall(r'#include "(?:[\w/]+/)?([\w.]+)"', text):
            if (path.parent / name).exists():
                common += re.sub(r"//.*", "", (path.parent / name).read_text())
        for test in TEST.finditer(text):
            sources[f"{test[1]}.{test[2]}"] = common + test[0]
    for lists in (root / "tests").rglob("CMakeLists.txt"):
        text = lists.read_text()
        scripts = "".join(p.read_text() for ext in ("sh", "py", "cpp") for p in sorted(lists.parent.glob(f"*.{ext}")))
        names = set(re.findall(r"NAME ([\w.]+)(?![\w.$])", text))
        for variable, values, body in re.findall(r"foreach\((\w+) ([^)]*)\)(.*?)endforeach", text, re.DOTALL):
            for name in re.findall(r"NAME ([\w.]*\$\{" + variable + r"\}[\w.]*)", body):
                names |= {name.replace(f"${{{variable}}}", value) for value in values.split()}
        for name in names:
            sources.setdefault(name, text + scripts)
    return sources


def spellings(root):
    """Maps each key of the option table to how tests write it: the key, its flags, its variable."""
    written = {}
    key = None
    for line in (root / OPTION_ROWS).read_text().splitlines():
        if found := KEY.match(line):
            key = found[1] or found[2]
            written[key] = {key}
        for text in re.findall(r'"([-\w,]+)"', line) if key else []:
            words = text.split(",")
            if text.startswith("-") or re.fullmatch(r"[A-Z][A-Z0-9_]+_[A-Z0-9_]+", text):
                written[key].update(words)
    return written


def names_setting(source, setting, written):
    """Whether the source of a test names a field, or a key in one of its spellings."""
    if setting.startswith("key "):
        words = written[setting.removeprefix("key ")]
        # Fields of an engine's options have the key's name without the engine.
        return any(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", source) for word in words)
    # `.field`, `->field`, `&Options::field`, or the field's name as a string.
    return re.search(rf"(?:\.|->|::|[\"'.]){setting.rpartition('.')[2]}\b", source) is not None


def lines_of(root, pattern):
    """Yields (where, what, the rest) of each line of the matching lists in tests/audit."""
    for path in sorted((root / "tests/audit").glob(pattern)):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line and not line.startswith("#"):
                what, _, rest = line.rpartition(": ") if path.name == "findings.txt" else line.partition(": ")
                yield f"{path.relative_to(root / 'tests/audit')}:{number}", what, rest


def tests_called(name, tests):
    pattern = re.compile(re.escape(name).replace(r"\*", ".*") + "$")
    return [test for test in tests if pattern.match(test)]


def missing_tests(names, tests):
    return [name for name in names.split() if not tests_called(name, tests)]


def test_complaints(setting, rest, tests, shows):
    """Yields what is wrong with a list of tests; `shows` tells whether the source of a test mentions the setting."""
    names, _, reason = rest.partition("; ")
    missing = missing_tests(names, tests)
    for name in missing:
        yield f"there is no test {name}"
    if not names:
        yield "names no test"
    elif not missing and not reason:
        sources = [tests[test] for name in names.split() for test in tests_called(name, tests)]
        if not any(shows(source) for source in sources):
            yield "none of its tests names it: write one that does, or the reason behind `; `"


def complaints(root):
    tests = known_tests(root)
    for where, what, names in lines_of(root, "findings.txt"):
        for name in missing_tests(names, tests):
            yield f"{where}: {what}: there is no test {name}"
        if not what or not names:
            yield f"{where}: name what was found and a test"
    sources = None
    uses = option_uses(root)
    written = spellings(root)
    reports = "".join(path.read_text() for name in REPORTS for path in sorted((root / "tests").rglob(name)))
    listed = {}
    for where, setting, how in lines_of(root, "settings/*.txt"):
        if setting in listed:
            yield f"{where}: {setting} is listed twice"
        listed[setting] = how
        kind, _, rest = how.partition(" ")
        if setting.startswith("key ") and setting.removeprefix("key ") not in written:
            continue  # reported below
        if kind == "test":
            for complaint in test_complaints(setting, rest, tests, lambda source: names_setting(source, setting, written)):
                yield f"{where}: {setting}: {complaint}"
        elif kind == "refused":
            found = re.fullmatch(r'"(.*?)"(?: test (.+))?', rest)
            if found is None:
                yield f'{where}: {setting}: write refused "TEXT" test SUITE.NAME'
                continue
            text, names = found[1], found[2] or ""
            if sources is None:
                sources = "".join(p.read_text() for d in ("src", "cli", "include") for p in (root / d).rglob("*.[ch]*"))
                sources = re.sub(r'"\s*\n\s*"', "", sources)
            if text not in sources:
                yield f'{where}: {setting}: no source has the text "{text}"'
            for complaint in test_complaints(setting, names, tests, lambda source: text in re.sub(r'"\s*\n\s*"', "", source) or names_setting(source, setting, written)):
                yield f"{where}: {setting}: {complaint}"
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
    structs = {struct for struct, _ in public_fields(root)}
    for struct, what in structs_without_options(root).items():
        if struct not in structs or not what:
            yield f"structs.txt: {struct}: " + ("say what it is" if struct in structs else "there is no such struct")


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
