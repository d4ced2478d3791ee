#!/usr/bin/env python3
"""Makes one of three ranks hang, die or disagree many times, in each phase and in each way, and counts how often the reports
say so in time. The tests do it a few times.

A hang must be reported within two seconds of the threshold (--hang_seconds 3), and a death within 50 ms, measured from just
before the rank kills itself until this script has read the line that says so. For deaths, "ended_ms" is the time until the
other ranks and the launcher have ended, too. The ranks themselves must report a disagreement, with the calls of all ranks.

usage: hang_many.py TOOL HANG_RANK ROUNDS [--jobs N] [--only WORD] [--transport shared_memory|gloo]
"""
import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

THRESHOLD, ALLOWED, DEATH = 3.0, 2.0, 0.050
# (phase, way): what the report must say
HANGS = {
    ("data", "stopped"): "waiting for the data loader",
    ("forward", "stopped"): "in forward",
    ("backward", "stopped"): "in backward",
    ("optimizer", "stopped"): "in the optimizer",
    ("checkpoint", "stopped"): "saving or loading",
    ("between", "stopped"): "between calls of the library",
    ("forward", "loop"): "in forward",
    ("backward", "lock"): "in backward",
    ("checkpoint", "file"): "saving or loading",
}
DEATHS = {(phase, "killed"): words for (phase, way), words in HANGS.items() if way == "stopped"}
DISAGREEMENTS = {
    ("different", ""): ["rank 0: all_reduce (Float [4]) number ", "rank 2: broadcast (Float [4]) with root 0 number "],
    ("extra", ""): ["rank 2: all_reduce (Float [3]) number "],
}


def launch(arguments, kind, directory, flags):
    """Runs one launch; returns (exit code, [(seconds of the monotonic clock, line of stderr)]). The last line marks its end."""
    command = [arguments.tool, "launch", "--cpu", "--num_processes", "3", "--hang_seconds", str(THRESHOLD), "--transport",
               arguments.transport, *flags, arguments.rank, *kind, directory, ""]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            lines.append((time.monotonic(), line))
        process.wait()
        lines.append((time.monotonic(), ""))
    return process.returncode, lines


def seconds_of(directory, name):
    return int(Path(directory, name).read_text()) / 1e9


def judge_hang(arguments, kind, words, directory):
    """Returns the seconds from the threshold to the report, or a complaint."""
    code, lines = launch(arguments, kind, directory, ["--on_hang", "kill"])
    text = "".join(line for _, line in lines)
    head = [when for when, line in lines if line.endswith(" for rank 2\n") and " have waited " in line]
    if code != 137 or not head or "rank 2 (process " not in text or f"): {words} for " not in text:
        return f"exit code {code}: {text}"
    return head[0] - seconds_of(directory, "hung") - THRESHOLD


def judge_death(arguments, kind, words, directory):
    """Returns the seconds until the death was reported and until all had ended, or a complaint."""
    code, lines = launch(arguments, kind, directory, [])
    text = "".join(line for _, line in lines)
    named = [when for when, line in lines if "rank 2 was killed by SIGKILL" in line and words in line]
    told = ["its last output:\n    goodbye"]
    has_call = "its last call: all_reduce" in text or "it was in: all_reduce" in text
    if code != 137 or not named or not has_call or any(word not in text for word in told):
        return f"exit code {code}: {text}"
    died = seconds_of(directory, "hung")
    return named[0] - died, lines[-1][0] - died


def judge_disagreement(arguments, kind, told, directory):
    code, lines = launch(arguments, kind, directory, ["--timeout_seconds", "20"])
    text = "".join(line for _, line in lines)
    if code != 3 or any(word not in text for word in told):
        return f"exit code {code}: {text}"
    failed = [seconds_of(directory, path.name) for path in Path(directory).glob("failed_*")]
    return min(failed) - seconds_of(directory, "hung")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("rank")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="launches at once; most of the time they wait")
    parser.add_argument("--only", default="", help="kinds whose phase or way is this word")
    parser.add_argument("--transport", default="shared_memory")
    arguments = parser.parse_args()
    all_good = True
    for name, kinds, judge, limit in (("hang", HANGS, judge_hang, ALLOWED), ("death", DEATHS, judge_death, DEATH),
                                      ("disagreement", DISAGREEMENTS, judge_disagreement, None)):
        for kind, words in kinds.items():
            if arguments.only and arguments.only not in (name, *kind):
                continue

            def play(_):
                with tempfile.TemporaryDirectory() as directory:
                    try:
                        return judge(arguments, kind, words, directory)
                    except OSError as error:
                        return str(error)

            with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
                results = list(pool.map(play, range(arguments.rounds)))
            ends = [result[1] for result in results if isinstance(result, tuple)]
            results = [result[0] if isinstance(result, tuple) else result for result in results]
            times = [result for result in results if isinstance(result, float)]
            late = [when for when in times if limit is not None and when > limit]
            for complaint in [result for result in results if isinstance(result, str)][:2]:
                print(complaint, file=sys.stderr)
            good = len(times) - len(late)
            all_good = all_good and good == arguments.rounds
            figures = {"median_ms": round(statistics.median(times) * 1000, 1), "slowest_ms": round(max(times) * 1000, 1)} if times else {}
            if ends:
                figures.update(ended_ms=round(statistics.median(ends) * 1000, 1), last_ended_ms=round(max(ends) * 1000, 1))
            print(json.dumps({name: " ".join(kind).strip(), "transport": arguments.transport, "good": good,
                              "rounds": arguments.rounds, **figures, "load": round(os.getloadavg()[0], 1)}), flush=True)
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
