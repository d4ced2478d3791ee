#!/usr/bin/env python3
"""Runs CASE=whole_step and its Python original in turns, and prints the medians of their figures.

usage: alternate.py BENCH_PROGRAM PEER_PYTHON [ARGUMENTS...]

A machine's speed drifts by more than the two differ, so each model, precision and number of threads is measured ROUNDS times by one
and the other; "..._beside_python" is the median of the rounds' ratios. Arguments choose as the programs' own do.
"""
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "3"))
FAMILIES = (("mlp", "encoder", "gpt", "cnn"), ("no", "bf16"), ("1", "2"))


def figures(*command):
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = (json.loads(line) for line in lines if line.startswith("{"))
    return {row["metric"]: row for row in rows}


def median_of(rows):
    middle = {key: statistics.median(row[key] for row in rows) for key in ("value", "baseline", "ratio")}
    return {**rows[0], **middle, "runs": sum(row["runs"] for row in rows)}


def main():
    program, python, *chosen = sys.argv[1:]
    families = [[name for name in family if name in chosen] or family for family in FAMILIES]
    for chosen_one in itertools.product(*families):
        ours, originals = [], []
        for _ in range(ROUNDS):
            ours.append(figures(program, *chosen_one, "unsharded"))
            originals.append(figures(python, str(Path(__file__).with_name("whole_step.py")), *chosen_one))
        for name in ours[0]:
            pairs = [(one[name], other["python_" + name]) for one, other in zip(ours, originals)]
            here = median_of([one for one, _ in pairs])
            there = median_of([other for _, other in pairs])
            ratio = statistics.median(one["value"] / other["value"] for one, other in pairs)
            beside = {**here, "metric": name.removesuffix("_us") + "_beside_python_us", "baseline": there["value"], "ratio": ratio}
            for row in (here, there, beside):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
