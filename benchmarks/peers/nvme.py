#!/usr/bin/env python3
"""Runs whole training steps on a disk in CASE=nvme and in DeepSpeed in turns, and prints the median of the rounds' ratios.

usage: nvme.py BENCH_PROGRAM PEER_PYTHON [MILLIONS_OF_PARAMETERS] [DIRECTORY_ON_THE_DISK]

400 million parameters by default, in the program's directory, where they need 14.4 GB of room. ROUNDS sets the number of rounds. A Python
without DeepSpeed prints a line that says so, and no figure.
"""
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "3"))


def milliseconds_of(*command):
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    figures = [json.loads(line) for line in lines if line.startswith('{"case"')]
    return figures[0]["value"] if figures else None


def main():
    program, python, *rest = sys.argv[1:]
    millions = rest[0] if rest else "400"
    directory = rest[1] if len(rest) > 1 else str(Path(program).resolve().parent)
    if subprocess.run([python, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('deepspeed') is None)"]).returncode != 0:
        print(f"nvme: not compared with DeepSpeed: {python} has none", file=sys.stderr)
        return
    peer = (python, str(Path(__file__).with_name("deepspeed_on_disk.py")), millions, directory)
    ours, theirs = [], []
    for number in range(ROUNDS):
        # The second of two runs may meet another disk than the first.
        runs = [(ours, (program, millions, directory, "step")), (theirs, peer)]
        for times, command in runs if number % 2 == 0 else reversed(runs):
            milliseconds = milliseconds_of(*command)
            if milliseconds is None:  # the program has said why
                return
            times.append(milliseconds)
        print(f"nvme: {ours[-1]:.0f} ms beside DeepSpeed's {theirs[-1]:.0f} ms", file=sys.stderr, flush=True)
    ratio = statistics.median(one / other for one, other in zip(ours, theirs))
    print(json.dumps({"case": "nvme", "metric": "step_over_deepspeed", "value": round(ratio, 4), "unit": "x",
                      "baseline": round(statistics.median(theirs), 3), "ratio": round(ratio, 4), "runs": ROUNDS}))


if __name__ == "__main__":
    main()
