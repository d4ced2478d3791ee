#!/usr/bin/env python3
"""Writes a call of every public method of every public class, for life_test.cpp, from the headers.

usage: life_calls.py INCLUDE CALLS TEST OUT

INCLUDE: include/accelerate. CALLS: calls.txt, which has the arguments that a type does not say, and what is left out,
and why. TEST: the program, which uses add_calls_of_CLASS for each class. Fails if a class or a method has neither a call
nor a reason, so that a new one cannot be forgotten.
"""
import re
import sys
from pathlib import Path

# Arguments by the parameter's type.
VALUES = {
    "bool": "true", "int": "0", "std::int64_t": "1", "std::uint64_t": "1", "std::size_t": "1", "double": "1.0",
    "Axis": "Axis::replicate", "ReduceOp": "ReduceOp::sum", "LogLevel": "LogLevel::debug",
    "std::string": 'std::string("x")', "std::string_view": '"x"', "std::filesystem::path": 'folder() / "x"',
    "at::Tensor": "ones()", "StateDict": "StateDict()", "std::function<void()>": "[] {}",
    "std::span<const at::Tensor>": "tensors()", "std::vector<at::Tensor>": "tensors()",
    "std::chrono::milliseconds": "std::chrono::milliseconds(10)", "std::optional<bool>": "true",
    "c10::Device": "at::kCPU", "torch::optim::Optimizer": "sgd()", "Optimizer": "stand().optimizer",
    "Accelerator": "stand().accelerator", "std::vector<std::string>": "std::vector<std::string>()",
    "Model<M>": "stand().model", "detail::ModelReference": "stand().model",
    "DataLoaderConfiguration": "DataLoaderConfiguration()",
    "std::span<const std::int64_t>": "indices()", "at::ScalarType": "at::kFloat", "at::Generator": "generator()",
    "std::optional<std::int64_t>": "1", "ProfileOptions": "ProfileOptions()", "AutocastOptions": "AutocastOptions()",
    "std::vector<PostfixValue>": "{}", "MetricSamples": "MetricSamples()", "BackwardOptions": "BackwardOptions()",
    "LogValues": 'LogValues{{"x", 1.0}}', "WeightList": "WeightList()", "MemoryCase": "MemoryCase()",
    "MemorySplit": "MemorySplit::replicated", "LogRecord": "LogRecord()", "LogSink": "nullptr",
    "std::vector<NamedLogLevel>": "{}", "std::initializer_list<Axis>": "{Axis::replicate}",
    "std::span<const Axis>": "std::vector<Axis>{Axis::replicate}",
    "std::span<const std::string>": 'std::vector<std::string>{"x"}', "torch::nn::Module": "*net()",
}
CALLED_OPERATORS = {"()": "it", "*": "*it", "++": "++it", "->": "it.operator->()"}


def without_comments(text):
    text = re.sub(r"//.*", "", text)
    return re.sub(r"^#.*(?:\\\n.*)*", "", text, flags=re.M)


def closing(text, start, left, right):
    """The place after the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == left) - (text[i] == right)
        if depth == 0:
            return i + 1
    raise SystemExit(f"unbalanced {left}: {text[start:start + 60]}")


def without_detail(text):
    while found := re.search(r"^namespace detail \{", text, flags=re.M):
        text = text[:found.start()] + text[closing(text, found.end() - 1, "{", "}"):]
    return text


CLASS = re.compile(r"\bclass (?:ACCELERATE_API )?(\w+)(?: final)?\s*((?::[^{;()]*)?)\{")


def classes_in(text, prefix=""):
    """Yields the name, bases and body of each class."""
    place = 0
    while found := CLASS.search(text, place):
        place = closing(text, found.end() - 1, "{", "}")
        body = text[found.end():place - 1]
        if not text[:found.start()].rstrip().endswith(("enum", "friend")):
            yield prefix + found[1], re.findall(r"public (\w+)\b(?!::)", found[2]), body


def declarations(body):
    """Yields the declarations of a class that are public, and its nested classes as text."""
    access, start, i = "private", 0, 0
    while i < len(body):
        if label := re.match(r"\s*(public|protected|private):", body[start:]):
            access = label[1]
            start = i = start + label.end()
            continue
        char = body[i]
        if char in "({":
            end = closing(body, i, char, ")}"["({".index(char)])
            i = end
            is_class = re.match(r"\s*(template\s*<[^{;]*>\s*)?(class|struct|enum)\b", body[start:])
            if char == "{" and not is_class:
                # A function's body, or a member's value.
                following = body[i:].lstrip()[:1]
                if following == ",":
                    continue  # a constructor's members
                if following == ";":
                    i = body.index(";", i) + 1
                if access == "public":
                    yield body[start:i]
                start = i
            continue
        i += 1
        if char == ";":
            if access == "public":
                yield body[start:i]
            start = i


def split_arguments(text):
    parts, depth, part = [], 0, ""
    for char in text:
        depth += (char in "(<{[") - (char in ")>}]")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    return [" ".join(each.split()) for each in [*parts, part] if each.strip()]


def method_of(declaration, class_name):
    """Returns the name and the parameters of a method that can be called on an object, or None."""
    text = " ".join(declaration.split())
    text = re.sub(r"\[\[\w+\]\] ?", "", text)
    if re.match(r"(friend|using|class|struct|enum|static|explicit|,|typedef)\b|,", text) or re.search(r"= (delete|default)\b", text):
        return None
    while text.startswith("template"):
        depth = 0
        for i in range(text.index("<"), len(text)):
            depth += (text[i] == "<") - (text[i] == ">" and text[i - 1] != "-")
            if depth == 0:
                break
        text = text[i + 1:].strip()
    if text.startswith(("friend", "static", "explicit", "using", "class", "struct")):
        return None
    if text.startswith("requires("):
        text = text[closing(text, text.index("("), "(", ")"):].strip()
    if found := re.search(r"\boperator\s*(\(\)|\*|\+\+|->|[^\s\w(]+|[\w:]+)\s*\(", text):
        if found[1] not in CALLED_OPERATORS:
            return None
        name, at = found[1], found.end() - 1
    else:
        depth, at = 0, None
        for i, char in enumerate(text):
            depth += (char == "<") - (char == ">" and text[i - 1] != "-")
            if char == "(" and depth == 0:
                at = i
                break
        if at is None:
            return None
        name = re.search(r"(~?\w+)\s*$", text[:at])
        if name is None:
            return None
        name = name[1]
        if name in (class_name.rsplit("::")[-1], "") or name.startswith("~") or "=" in text[:at]:
            return None
    return name, split_arguments(text[at + 1:closing(text, at, "(", ")") - 1])


def argument(parameter):
    """A value for a parameter, "" if it has a default, or None."""
    if "=" in parameter:
        return ""
    type_name = re.sub(r"([&>*\s])\s*\w+$", r"\1", parameter) if re.search(r"[&>*\s]\s*\w+$", parameter) else parameter
    type_name = re.sub(r"^const |[&\s]+$", "", type_name.strip()).strip()
    return VALUES.get(type_name)


def read_headers(include):
    classes = {}
    for path in sorted(include.glob("*.h")):
        for name, bases, body in classes_in(without_detail(without_comments(path.read_text()))):
            methods = [m for d in declarations(body) if (m := method_of(d, name))]
            classes[name] = (bases, methods)
            for text in declarations(body):
                for inner, _, inner_body in classes_in(text):
                    if re.match(r"\s*(template\s*<[^{;]*>\s*)?class\b", text):
                        found = [m for d in declarations(inner_body) if (m := method_of(d, inner))]
                        classes[name + inner] = ([], found)
    return classes


def read_calls(path):
    calls, reasons = {}, {}
    for line in path.read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if found := re.match(r"([\w:]+(?:operator\S+)?) -- (.+)", line):
            reasons[found[1]] = found[2]
        elif found := re.match(r"(\w+::(?:\w+|operator\S+?)): (.+)", line):
            calls.setdefault(found[1], []).append(found[2])
        else:
            raise SystemExit(f"{path}: cannot read: {line}")
    return calls, reasons


def main():
    include, table, test, out = map(Path, sys.argv[1:])
    classes = read_headers(include)
    calls, reasons = read_calls(table)
    tested = set(re.findall(r"\badd_calls_of_(\w+)", test.read_text()))
    problems, text, used = [], [], set()
    problems += [f"{each} is not a public class" for each in sorted(tested - set(classes))]
    inherited = {base for name in tested for base in bases_of(classes, name)}
    for name, (bases, methods) in classes.items():
        is_needed = name in tested or name in inherited
        if name in reasons and is_needed:
            problems.append(f"{name} has a test and a reason for none")
        has_methods = methods or any(classes[base][1] for base in bases_of(classes, name))
        if name not in reasons and not is_needed and has_methods:
            problems.append(f"{name} has neither a test (add_calls_of_{name}) nor a reason in {table.name}")
        used.add(name)
        if not is_needed:
            continue
        text += ["template <class T>", f"void add_calls_of_{name}(Calls<T>& calls) {{"]
        text += [f"  add_calls_of_{base}(calls);" for base in bases if base in classes]
        done = set()
        for method, parameters in methods:
            key = f"{name}::" + (f"operator{method}" if method in CALLED_OPERATORS else method)
            used.add(key)
            if key in reasons:
                continue
            if key in calls:
                if key not in done:
                    text += [add_call(each) for each in calls[key]]
                done.add(key)
                continue
            values = [argument(each) for each in parameters]
            if None in values:
                problems.append(f"{key} needs arguments in {table.name}: {', '.join(parameters)}")
                continue
            callee = CALLED_OPERATORS.get(method, f"it.{method}")
            passed = ", ".join(value for value in values if value)
            is_call = method == "()" or method not in CALLED_OPERATORS
            text.append(add_call(f"{callee}({passed})" if is_call else callee))
        text += ["}", ""]
    problems += [f"{table.name}: there is no {each}" for each in sorted((set(calls) | set(reasons)) - used)]
    if problems:
        raise SystemExit("\n".join(problems))
    content = "\n".join(text)
    if not out.exists() or out.read_text() != content:
        out.write_text(content)


def add_call(expression):
    name = expression.replace("\\", "\\\\").replace('"', '\\"')
    return f'  calls.push_back({{"{name}", [](T& it) {{ static_cast<void>(it), static_cast<void>({expression}); }}}});'


def bases_of(classes, name):
    for base in classes.get(name, ([], []))[0]:
        if base in classes:
            yield base
            yield from bases_of(classes, base)


if __name__ == "__main__":
    main()
