#!/usr/bin/env python3
"""Measures how long a newcomer and a developer wait, on a clone of this checkout's last commit, without a compiler cache.

usage: build.py            (all figures: some 40 minutes on two idle cores)
       build.py include    (include_over_torch_s only; needs a LibTorch in .deps)

demo_s, demo_cpu_s    `make demo` in a fresh clone, including the download of LibTorch
test_s, test_cpu_s    `make test` after that, to the end of the last test
one_file_s            from a change of one source file until its tests have run: the slowest of several rooms
include_over_torch_s  compiling <accelerate/accelerate.h> in addition to <torch/torch.h>, minus the latter alone
"""
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# source file -> the tests of its room
ONE_FILE = {
    "src/params/gradient_norm.cpp": "GradientNorm",
    "src/comm/mesh.cpp": "^Mesh",
    "src/train/step/clip.cpp": "^Accelerator",
    "src/parallel/shard/shard.cpp": "^Shard[.]",
    "cli/commands/estimate_command.cpp": "Estimate",
}


def report(metric, value, goal):
    print(json.dumps({"case": "build", "metric": metric, "value": round(value, 2), "unit": "s", "goal": goal}), flush=True)


def timed(command, directory):
    """Returns (wall seconds, CPU seconds) of a command and its children."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    result = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, "CCACHE_DISABLE": "1"})
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stdout[-4000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def include_over_torch(libtorch):
    """Returns the difference of two medians in CPU seconds, of three interleaved pairs."""
    flags = ["g++", "-std=c++20", "-O2", "-DNDEBUG", "-c", "-o", "/dev/null", "-x", "c++", f"-I{ROOT}/include",
             "-isystem", f"{libtorch}/include", "-isystem", f"{libtorch}/include/torch/csrc/api/include"]
    with tempfile.TemporaryDirectory() as directory:
        programs = {"torch": "#include <torch/torch.h>\n", "both": "#include <accelerate/accelerate.h>\n#include <torch/torch.h>\n"}
        for name, text in programs.items():
            Path(directory, name).write_text(text + "int main() {}\n")
        seconds = {name: [] for name in programs}
        for _ in range(3):
            for name in programs:
                seconds[name].append(timed([*flags, str(Path(directory, name))], directory)[1])
    return statistics.median(seconds["both"]) - statistics.median(seconds["torch"])


def main():
    libtorch = (ROOT / ".deps/libtorch.path").read_text().strip()
    report("include_over_torch_s", include_over_torch(libtorch), "at most 3")
    if sys.argv[1:] == ["include"]:
        return
    clone = Path(tempfile.mkdtemp(prefix="accelerate-build-"))
    try:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        wall, cpu = timed(["make", "demo"], clone)
        report("demo_s", wall, "at most 240")
        report("demo_cpu_s", cpu, "")
        wall, cpu = timed(["make", "test"], clone)
        report("test_s", wall, "at most 900")
        report("test_cpu_s", cpu, "")
        slowest = 0.0
        for source, tests in ONE_FILE.items():
            with open(clone / source, "a") as file:
                file.write("// changed\n")
            seconds = timed(["make", "test", f"TESTS={tests}"], clone)[0]
            print(f"{source}: {seconds:.1f} s", file=sys.stderr)
            slowest = max(slowest, seconds)
        report("one_file_s", slowest, "at most 60")
    finally:
        shutil.rmtree(clone, ignore_errors=True)


if __name__ == "__main__":
    main()
