#!/usr/bin/env python3
"""Makes machines, simulated by launchers on this one, leave a group of one to three or die, COUNT times each, and join it again, in
random order and at random moments. After each change the group must continue with the right ranks, from states in memory; in the end
every sample of every epoch must have been seen once, and losses must equal those of an undisturbed group up to rounding. The tests
make a few changes.

usage: machines_many.py TOOL ELASTIC_RANK COUNT [SEED]
"""
import json
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from survive_many import STEPS_PER_EPOCH, complaints_about, curve_of, launch  # noqa: E402

MOST, CHANGES = 3, ("death", "leave", "join")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Machines:
    """The launchers of the machines."""

    def __init__(self, tool, program, directory, count):
        self.words = [tool, "launch", "--num_machines", str(MOST), "--num_processes", f"1:{MOST}", "--main_process_ip", "127.0.0.1",
                      "--main_process_port", free_port(), "--redundancy", "neighbour", "--redundancy_steps", "3", "--machine_rank"]
        self.job = [program, directory, "unsaved", str(STEPS_PER_EPOCH), str(4 * count + 1)]
        self.errors = tempfile.TemporaryFile("w+")
        self.launchers = {}

    def start(self, machine):
        self.launchers[machine] = subprocess.Popen(
            [*self.words, str(machine), *self.job], stdout=subprocess.PIPE if machine == 0 else subprocess.DEVNULL, stderr=self.errors,
            text=True)

    def change(self, kind, chance):
        others = [machine for machine in range(1, MOST) if (machine in self.launchers) != (kind == "join")]
        machine = chance.choice(others)
        if kind == "join":
            self.start(machine)
        else:
            launcher = self.launchers.pop(machine)
            launcher.send_signal(signal.SIGKILL if kind == "death" else signal.SIGTERM)
            launcher.wait()


def wanted(count):
    return {"death": count, "leave": count, "join": 2 * count}


def judge(kind, before, now):
    """Says what is wrong with the ranks of the next generation; None if they are right."""
    if kind is None:
        expected = len(now) == MOST
    elif kind == "join":
        expected = len(now) == len(before) + 1 and set(before) < set(now)
    else:
        expected = len(now) == len(before) - 1 and set(now) < set(before)
    return None if expected and now[:1] == (before or now)[:1] else f"after a {kind}: {before} became {now}"


def run_changes(machines, count, chance):
    left, seconds = wanted(count), {kind: [] for kind in CHANGES}
    kind, before, asked = None, [], time.monotonic()
    for machine in range(MOST):
        machines.start(machine)
    for line in machines.launchers[0].stdout:
        found = re.search(r"generation (\d+):(.*)", line)
        if not found:
            continue
        now = [int(process) for process in found[2].split()]
        problem = judge(kind, before, now)
        if problem:
            return seconds, problem
        if kind:
            seconds[kind].append(time.monotonic() - asked)
        before = now
        kinds = [each for each, number in left.items()
                 if number > 0 and not (each == "join" and len(now) == MOST) and not (each != "join" and len(now) == 1)]
        if not kinds:
            kind = None
            continue
        kind = chance.choice(kinds)
        left[kind] -= 1
        time.sleep(chance.random() * 0.3)
        asked = time.monotonic()
        machines.change(kind, chance)
    return seconds, None


def main():
    tool, program, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as other:
        machines = Machines(tool, program, directory, count)
        try:
            seconds, problem = run_changes(machines, count, random.Random(seed))
            if problem:
                for launcher in machines.launchers.values():
                    launcher.kill()
            codes = {machine: launcher.wait() for machine, launcher in machines.launchers.items()}
        finally:
            for launcher in machines.launchers.values():
                launcher.kill()
        if problem or any(codes.values()):
            machines.errors.seek(0)
            problem = f"{problem}; exit codes {codes}: {machines.errors.read()[-4000:]}"
        else:
            curve = curve_of(directory)
            undisturbed = launch(tool, program, other, "2", max(curve), 1)
            undisturbed.communicate()
            problem = next(complaints_about(curve, curve_of(other)), None)
        for kind, each in seconds.items():
            figures = {"median_ms": round(statistics.median(each) * 1000), "slowest_ms": round(max(each) * 1000)} if each else {}
            print(json.dumps({"change": kind, "went_on": len(each), "of": wanted(count)[kind], **figures}))
        print(problem or json.dumps({"steps": len(curve), "samples_once": True, "curve_equal": True, "seed": seed}))
        return 1 if problem or any(len(seconds[kind]) != number for kind, number in wanted(count).items()) else 0


if __name__ == "__main__":
    sys.exit(main())
