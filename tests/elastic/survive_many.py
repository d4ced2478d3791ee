#!/usr/bin/env python3
"""Kills ranks of a group of one to three, and makes ranks join and leave it, COUNT times each, in random order and at random
moments. After each change the group must continue with the right ranks; in the end every sample of every epoch must have been seen
once, and losses must equal those of an undisturbed group up to rounding. The tests make a few changes.

usage: survive_many.py TOOL ELASTIC_RANK COUNT [SEED]
"""
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

STEPS_PER_EPOCH, SAMPLES, FEWEST, MOST = 10, 120, 1, 3


def launch(tool, program, directory, sizes, steps, generations, flags=()):
    return subprocess.Popen(
        [tool, "launch", "--num_processes", sizes, *flags, program, directory, "elastic", str(steps), str(generations)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def curve_of(directory):
    """Returns step -> (loss, samples), as recorded by the last process that made the step."""
    curve = {}
    for line in Path(directory, "curve").read_text().splitlines():
        step, loss, *samples = line.split()
        curve[int(step)] = float(loss), sorted(map(int, samples))
    return curve


def complaints_about(curve, undisturbed):
    if sorted(curve) != list(range(1, len(curve) + 1)):
        yield f"steps are missing: {sorted(curve)}"
    for first in range(1, len(curve) - STEPS_PER_EPOCH + 2, STEPS_PER_EPOCH):
        seen = sorted(sample for step in range(first, first + STEPS_PER_EPOCH) for sample in curve[step][1])
        if seen != list(range(SAMPLES)):
            yield f"the epoch from step {first} on did not see each sample once: {seen}"
    for step, (loss, samples) in curve.items():
        other_loss, other_samples = undisturbed[step]
        if samples != other_samples or abs(loss - other_loss) > 1e-6:
            yield f"step {step}: loss {loss}, samples {samples}; undisturbed: {other_loss}, {other_samples}"


class Group:
    """The ranks of the current generation, and the change that they go through next."""

    def __init__(self, tool, count, chance):
        self.tool, self.chance = tool, chance
        self.left = {"death": count, "join": count, "leave": count}
        self.seconds = {kind: [] for kind in self.left}
        self.processes, self.kind, self.victim, self.asked = [], None, None, 0.0

    def judge(self, processes):
        """Says what is wrong with the ranks of the next generation; None if they are right."""
        if self.kind is None:
            expected = len(processes) == MOST
        elif self.kind == "death":
            expected = len(processes) == len(self.processes) and all(
                (now == before) != (before == self.victim) for now, before in zip(processes, self.processes))
        elif self.kind == "join":
            expected = len(processes) == len(self.processes) + 1 and set(self.processes) < set(processes)
        else:
            expected = len(processes) == len(self.processes) - 1 and set(processes) < set(self.processes)
        if not expected:
            return f"after a {self.kind} of {self.victim}: {self.processes} became {processes}"
        if self.kind is not None:
            self.seconds[self.kind].append(time.monotonic() - self.asked)
        self.processes = processes
        return None

    def change(self, launcher):
        """Begins the next change; returns False if none is left."""
        size = len(self.processes)
        kinds = [kind for kind, left in self.left.items() if left > 0 and not (kind == "join" and size == MOST) and
                 not (kind == "leave" and size == FEWEST)]
        if not kinds:
            return False
        self.kind = self.chance.choice(kinds)
        self.left[self.kind] -= 1
        time.sleep(self.chance.random() * 0.3)
        self.asked = time.monotonic()
        if self.kind == "death":
            self.victim = self.chance.choice(self.processes)
            os.kill(self.victim, signal.SIGKILL)
        else:
            wanted = size + (1 if self.kind == "join" else -1)
            subprocess.run([self.tool, "resize", str(launcher), str(wanted)], check=True, stdout=subprocess.DEVNULL)
        return True


def main():
    tool, program, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as other, \
            tempfile.TemporaryFile("w+") as errors:
        run = launch(tool, program, directory, f"{FEWEST}:{MOST}", STEPS_PER_EPOCH, 3 * count + 1,
                     ["--max_restarts", str(count), "--redundancy", "neighbour", "--redundancy_steps", "3"])
        group, problem = Group(tool, count, random.Random(seed)), None
        with run.stderr:
            drain = threading.Thread(target=lambda: errors.writelines(run.stderr))
            drain.start()
            for line in run.stdout:
                found = re.search(r"generation (\d+):(.*)", line)
                if not found:
                    continue
                problem = problem or group.judge([int(process) for process in found[2].split()])
                if problem:
                    run.terminate()
                    break
                group.change(run.pid)
            code = run.wait()
            drain.join()
        errors.seek(0)
        problem = problem or (f"exit code {code}: {errors.read()[-4000:]}" if code else None)
        if not problem:
            curve = curve_of(directory)
            undisturbed = launch(tool, program, other, "2", max(curve), 1)
            undisturbed.communicate()
            problem = next(complaints_about(curve, curve_of(other)), None)
        for kind, seconds in group.seconds.items():
            figures = {"median_ms": round(statistics.median(seconds) * 1000), "slowest_ms": round(max(seconds) * 1000)} if seconds else {}
            print(json.dumps({"change": kind, "went_on": len(seconds), "of": count, **figures}))
        print(problem or json.dumps({"steps": len(curve), "samples_once": True, "curve_equal": True, "seed": seed}))
        return 1 if problem or any(len(seconds) != count for seconds in group.seconds.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
