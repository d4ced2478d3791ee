#!/usr/bin/env python3
"""Passes on what a benchmark prints, and appends each figure to benchmarks/results/CASE.jsonl with where and when it was measured.

usage: PROGRAM | record_bench.py BUILD

A figure is a line of JSON with "case" and "metric". Added are the machine, LibTorch's version, the commit and the date (UTC).
BENCH_MACHINE names the machine in other words; BENCH_RESULTS is another directory for the files.
"""
import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def output_of(*command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine():
    """Returns the number and kind of processors, and the GPU if there is one: "2 x AMD EPYC 9B14, AVX-512"."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"^model name\s*: (.*)$", text, re.M)
    name = re.sub(r"\(R\)|\(TM\)|\b(CPU|Processor|\d+-Core)\b|@.*", "", model[1] if model else "processor")
    flags = set(re.findall(r"\b(avx512f|avx2)\b", text))
    vectors = ", AVX-512" if "avx512f" in flags else ", AVX2" if "avx2" in flags else ""
    gpu = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    return (gpu[0] + ", " if gpu else "") + f"{os.cpu_count()} x {' '.join(name.split())}{vectors}"


def commit():
    """Returns the short commit, marked if anything but the results differs from it."""
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return output_of("git", "rev-parse", "--short=8", "HEAD") + ("-dirty" if changed else "")


def libtorch(build):
    """Returns the version that a build directory uses."""
    cache = Path(build) / "CMakeCache.txt"
    found = re.search(r"^ACCELERATE_LIBTORCH_VERSION:\w+=(.*)$", cache.read_text(), re.M) if cache.exists() else None
    return found[1] if found else ""


def figure_in(line):
    try:
        figure = json.loads(line)
    except ValueError:
        return None
    return figure if isinstance(figure, dict) and "metric" in figure and re.fullmatch(r"\w+", str(figure.get("case"))) else None


def main():
    results = Path(os.environ.get("BENCH_RESULTS", ROOT / "benchmarks/results"))
    results.mkdir(parents=True, exist_ok=True)
    origin = {"machine": os.environ.get("BENCH_MACHINE") or machine(), "libtorch": libtorch(sys.argv[1]), "commit": commit(),
              "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat()}
    for line in sys.stdin:
        print(line, end="", flush=True)
        figure = figure_in(line)
        if figure:
            with open(results / f"{figure['case']}.jsonl", "a") as file:
                file.write(json.dumps({**figure, **origin}) + "\n")


if __name__ == "__main__":
    main()
