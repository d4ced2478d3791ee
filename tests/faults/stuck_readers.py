#!/usr/bin/env python3
"""Launches ranks that write more than anybody reads, and measures what a launcher still does whose output is stuck.

In each trial the launcher's readers stop reading and its pipes fill up. Then the launcher gets SIGTERM, and all ranks must
hear of it ("told") and the launcher must end ("ended") while nobody reads; or a rank is killed, and the others must be told.
The kinds: standard output ("out"), both streams in one pipe ("both"), the disk of --log_dir ("log"), a death ("death"). The
tests in tests/cli/stuck_reader_test.cpp do it a few times, without times.

usage: stuck_readers.py TOOL ROUNDS [--ranks N] [--only KIND]
"""
import argparse
import fcntl
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

ALLOWED_TOLD_MS = 100
# SIGTERM: the ranks' own end, then two seconds for what is unwritten.
ALLOWED_ENDED_MS = 5000


def flood(directory):
    """The ranks' program: writes until it is told to end, then notes when, and leaves."""
    told = []

    def note(*_):
        told.append(time.monotonic_ns())

    signal.signal(signal.SIGTERM, note)
    rank = os.environ["RANK"]
    Path(directory, f"pid_{rank}").write_text(str(os.getpid()))
    while not told:
        os.write(1, b"x" * 20_000 + b"\n")
    Path(directory, f"told_{rank}.new").write_text(str(told[0]))
    os.rename(Path(directory, f"told_{rank}.new"), Path(directory, f"told_{rank}"))


def num_unread(descriptor):
    answer = bytearray(4)
    fcntl.ioctl(descriptor, termios.FIONREAD, answer)
    return int.from_bytes(answer, sys.byteorder)


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.001)


def wait_until_stuck(descriptor, directory, ranks):
    wait_until(lambda: all(Path(directory, f"pid_{rank}").exists() for rank in range(ranks)))
    wait_until(lambda: num_unread(descriptor) > 40_000)
    # The launcher's queue and the ranks' pipes fill up, too.
    time.sleep(0.2)


def trial(kind, arguments, directory):
    """Returns the milliseconds until the last rank was told, and until the launcher had ended."""
    flags, stdout = [], subprocess.PIPE
    if kind == "log":
        log = Path(directory, "logs/attempt_0/0/stdout.log")
        log.parent.mkdir(parents=True)
        os.mkfifo(log)
        watched = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        flags, stdout = ["--log_dir", f"{directory}/logs", "--tee", "0"], subprocess.DEVNULL
    command = [arguments.tool, "launch", "--cpu", "--num_processes", str(arguments.ranks), *flags, "--no_python",
               sys.executable, __file__, "--flood", directory]
    stderr = subprocess.STDOUT if kind == "both" else subprocess.DEVNULL
    launcher = subprocess.Popen(command, stdout=stdout, stderr=stderr)
    try:
        if kind != "log":
            watched = launcher.stdout.fileno()
        wait_until_stuck(watched, directory, arguments.ranks)
        told = range(1, arguments.ranks) if kind == "death" else range(arguments.ranks)
        start = time.monotonic_ns()
        if kind == "death":
            os.kill(int(Path(directory, "pid_0").read_text()), signal.SIGKILL)
        else:
            launcher.terminate()
        wait_until(lambda: all(Path(directory, f"told_{rank}").exists() for rank in told))
        last = max(int(Path(directory, f"told_{rank}").read_text()) for rank in told)
        if kind == "death":
            launcher.terminate()
        code = launcher.wait(60)
        ended = time.monotonic_ns()
        if code != 128 + signal.SIGTERM and kind != "death":
            raise ValueError(f"exit code {code}")
        return (last - start) / 1e6, (ended - start) / 1e6
    finally:
        launcher.kill()
        launcher.wait()
        if kind == "log":
            os.close(watched)
        else:
            launcher.stdout.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    all_good = True
    for kind in ("out", "both", "log", "death"):
        if arguments.only not in ("", kind):
            continue
        told, ended, lost = [], [], 0
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as directory:
                try:
                    one, other = trial(kind, arguments, directory)
                    told.append(one)
                    ended.append(other)
                except (TimeoutError, ValueError, subprocess.TimeoutExpired) as error:
                    lost += 1
                    print(f"{kind}: {error!r}", file=sys.stderr)
        good = sum(t <= ALLOWED_TOLD_MS and e <= ALLOWED_ENDED_MS for t, e in zip(told, ended))
        all_good = all_good and good == arguments.rounds
        figures = {"told_ms": round(statistics.median(told), 1), "last_told_ms": round(max(told), 1),
                   "ended_ms": round(statistics.median(ended)), "last_ended_ms": round(max(ended))} if told else {}
        print(json.dumps({"stuck": kind, "good": good, "rounds": arguments.rounds, "lost": lost, **figures,
                          "load": round(os.getloadavg()[0], 1)}), flush=True)
    return 0 if all_good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--flood"]:
        flood(sys.argv[2])
    else:
        sys.exit(main())
