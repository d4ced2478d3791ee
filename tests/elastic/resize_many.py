#!/usr/bin/env python3
"""Changes the size of a group between 2 and 3 ranks many times, each time as soon as a generation has begun, and
prints how long the slowest change took. The test makes two changes.

usage: resize_many.py TOOL ELASTIC_RANK COUNT
"""
import re
import subprocess
import sys
import tempfile
import time


def main() -> int:
    tool, program, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with tempfile.TemporaryDirectory() as directory:
        run = subprocess.Popen(
            [tool, "launch", "--num_processes", "2:3", "--max_restarts", "0", program, directory, "elastic", "20",
             str(count + 1)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        size, seen, slowest, asked = 3, set(), 0.0, time.monotonic()
        for line in run.stdout:
            found = re.search(r"generation (\d+)(.*)", line)
            if not found or int(found[1]) in seen:
                continue
            generation, ranks = int(found[1]), len(found[2].strip(" :").split())
            if ranks != size:
                print(f"generation {generation} has {ranks} ranks, not {size}")
                return 1
            if seen:
                slowest = max(slowest, time.monotonic() - asked)
            seen.add(generation)
            if generation > count:
                continue
            size = 5 - size
            asked = time.monotonic()
            subprocess.run([tool, "resize", str(run.pid), str(size)], check=True, stdout=subprocess.DEVNULL)
        code = run.wait()
    print(f"{len(seen) - 1} of {count} changes, slowest {slowest * 1000:.0f} ms")
    return 0 if code == 0 and len(seen) == count + 1 else 1


if __name__ == "__main__":
    sys.exit(main())
