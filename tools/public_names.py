#!/usr/bin/env python3
"""Writes docs/reference/names.md, the index of public names, from the headers in include/accelerate.

usage: public_names.py ROOT          write the page
       public_names.py ROOT --check  fail if the page differs from the headers, or lacks a header or a name

The line of a name is the first sentence of its docstring. Public types and functions are those at namespace scope,
outside namespace detail; the headers describe the members.
"""
import re
import sys
from pathlib import Path

# Subject -> its headers, in the order in which a reader needs them.
SUBJECTS = {
    "The accelerator and its options": [
        "accelerator", "micro_step", "captured_step", "accelerator_options", "step_options", "gradient_state", "model", "model_options", "optimizer", "scheduler"],
    "Data": [
        "data_loader", "batch_iterator", "data_loader_options", "batch_sequences", "data_loader_configuration", "torch_loader", "samplers", "collate", "token_collate", "prefetch_report"],
    "Metrics": ["metrics"],
    "Trackers": ["trackers", "tracking", "tracker"],
    "Datasets": [
        "datasets", "tensor_dataset", "csv_dataset", "json_lines", "token_dataset", "image_folder", "idx"],
    "Precision": ["precision", "fp8", "grad_scaler"],
    "Fused functions": ["fused"],
    "Optimizers and schedules": ["optimizers", "lr_scheduler", "lr_schedules", "composed_schedules", "warmup", "local_sgd"],
    "Replicas, shards and other engines' settings": [
        "parallel", "parallel_options", "tensor_parallel", "parallel_layers", "parallel_cross_entropy", "context_parallel", "attention", "sequence_shards", "pipeline", "pipeline_schedule", "pipeline_layers", "prepare_pippy", "experts", "planner", "planning", "bucket_hook", "fully_sharded", "full_parameters", "deepspeed", "deepspeed_training",
        "megatron_lm", "megatron_lm_training", "parallelism_config", "activation_checkpointing", "save_on_disk"],
    "Ranks and collectives": ["world", "distributed_type", "visit_tensors", "nested", "nested_structure", "objects", "launch", "elastic"],
    "Checkpoints and weights": [
        "checkpoints", "checkpoint", "state_dict", "save", "weights", "model_weights", "safetensors", "empty_weights"],
    "Models that do not fit into memory": [
        "big_model", "model_device_map", "device_map", "block_plan", "byte_size", "load_checkpoint", "offload", "module_tensors", "hooks",
        "layerwise_casting", "quantize", "quantized_model"],
    "Models from Python": ["exported_model", "exported_description", "exported_pipeline", "package"],
    "Adapters": ["adapters"],
    "Memory, randomness, errors, logs, the machine": ["memory", "memory_plan", "random", "error", "log", "logger", "progress", "profiler", "machine", "environment", "version"],
}
WITHOUT_NAMES = {"accelerate", "export", "schedulers"}
TYPE = re.compile(r"^(?:class|struct|enum class|concept)\s+(?:ACCELERATE_API\s+)?(\w+)")
FUNCTION = re.compile(r"([A-Za-z_]\w*)\s*\($")


def first_sentence(comment):
    text = " ".join(line.strip() for line in comment)
    match = re.match(r"(.+?[.:])(?:\s|$)", text.replace("e.g. ", "e.g.\u00a0"))
    return (match[1] if match else text).rstrip(":").rstrip(".").replace("\u00a0", " ")


def declared_name(declaration):
    """Returns the name that a declaration at namespace scope introduces, or None."""
    text = re.sub(r"\[\[\w+\]\]", "", declaration).strip()
    text = re.sub(r"^template\s*<", "<", text)
    while text.startswith("<"):                       # the template's parameters
        depth = 0
        for i, c in enumerate(text):
            depth += (c == "<") - (c == ">")
            if depth == 0:
                text = text[i + 1:].strip()
                break
        else:
            return None
    text = re.sub(r"^requires requires.*?\{.*?\} ", "", text)
    text = re.sub(r"^requires .*? (?=(class|struct|void|auto|bool|std::|T |at::|ACCELERATE_API))", "", text)
    found = TYPE.match(text)
    if found:
        # A forward declaration is described where the type is defined.
        return None if re.match(r"^(class|struct|enum class)\s+(ACCELERATE_API\s+)?\w+(\s*:\s*\w+)?\s*;", text) else found[1]
    if text.startswith("using "):
        return text.split()[1] if "=" in text else None
    if text.startswith(("friend", "extern", "static_assert", "#")):
        return None
    if "(" in text.split("{")[0].split("=")[0]:
        head = text.split("(")[0] + "("
        found = FUNCTION.search(head)
        if found and "operator" not in head and "::" not in head.rsplit(" ", 1)[-1]:
            return found[1]
        return None
    found = re.match(r"inline constexpr [\w:<>]+ (\w+)|concept (\w+)", text)
    return found[found.lastindex] if found else None


def names_of(header):
    """Maps every qualified public name in a header to the first sentence of its first docstring."""
    scopes, comment, found, pending = [], [], {}, ""
    text = re.sub(r"^namespace detail \{$.*?^\}  // namespace detail$", "", header.read_text(), flags=re.S | re.M)
    for line in text.splitlines():
        stripped = line.strip()
        if not pending:
            opened = re.match(r"(?:inline )?namespace ([\w:]+) \{$", stripped)
            if stripped.startswith("///"):
                comment.append(stripped[3:])
                continue
            if opened or stripped.startswith(("//", "#", "}")) or not stripped:
                if opened:
                    scopes.append(opened[1].split("::"))
                elif stripped.startswith("}") and scopes:
                    scopes.pop()
                comment = []
                continue
        pending += " " + re.sub(r"//.*", "", stripped)
        is_open = pending.count("{") > pending.count("}") or not re.search(r"[;}]\s*$", pending)
        if is_open or re.search(r"requires requires\([^{}]*\{[^{}]*\}$", pending):
            continue
        name = declared_name(pending.strip())
        inside = [part for scope in scopes for part in scope]
        if name and name != "requires" and inside[:1] == ["accelerate"] and "detail" not in inside:
            qualified = "::".join([*inside[1:], name])
            found[qualified] = found.get(qualified) or first_sentence(comment)
        pending, comment = "", []
    return found


def default_text(name, declarations):
    """What takes an options struct without a docstring of its own: "Options of `CsvDataset`", "Options of `backward()`"."""
    short = name.rsplit("::")[-1]
    if not short.endswith("Options"):
        return ""
    # The name before the parentheses that hold a parameter of this type.
    takers = re.findall(rf"(\w+)\((?:[^(){{}};]|\([^()]*\))*\b{short}\b", declarations)
    subject = short.removesuffix("Options")
    takers = [taker for taker in takers if taker not in (short, "if", "explicit")]
    if re.search(rf"\bclass (?:ACCELERATE_API )?{subject}\b", declarations):
        takers = [subject]
    plain = [taker for taker in takers if taker.replace("_", "").lower().startswith(subject.lower())]
    taker = min(plain or takers, key=len, default="")
    if not taker:
        return ""
    return f"Options of `{taker}`" if taker[0].isupper() else f"Options of `{taker}()`"


def page(root):
    include = root / "include/accelerate"
    lines = [
        "# Index of names", "",
        "Every public type and function, by subject, in namespace `accelerate`; the header holds the contract. Written by `tools/public_names.py`.", ""]
    listed = {h for headers in SUBJECTS.values() for h in headers}
    present = {p.stem for p in include.glob("*.h")} - WITHOUT_NAMES
    problems = [f"{h}.h has no subject in tools/public_names.py" for h in sorted(present - listed)]
    declarations = "\n".join(
        re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.M) for path in sorted(include.glob("*.h")))
    problems += [f"tools/public_names.py lists {h}.h, which does not exist" for h in sorted(listed - present)]
    for subject, headers in SUBJECTS.items():
        rows = []  # (name, header, text)
        for header in headers:
            path = include / f"{header}.h"
            if path.exists():
                rows += [(name, header, text or default_text(name, declarations)) for name, text in names_of(path).items()]
        problems += [f"{header}.h: {name} has no docstring" for name, header, text in rows if not text]
        lines += [f"## {subject}", "", "| name | header | |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | `{header}.h` | {text.replace('|', chr(92) + '|')} |" for name, header, text in rows]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n", problems


def main():
    root = Path(sys.argv[1])
    text, problems = page(root)
    target = root / "docs/reference/names.md"
    if sys.argv[2:] == ["--check"]:
        if not target.exists() or target.read_text() != text:
            problems.append("docs/reference/names.md differs from the headers: run tools/public_names.py .")
    else:
        target.write_text(text)
    print("\n".join(problems) or f"{text.count('| `')} names")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
