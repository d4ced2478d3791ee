#!/usr/bin/env python3
"""Uses `accelerate-cpp watch` in tmux: curves, keys, resizing the window, quitting.

usage: tmux_test.py TOOL PAGE_RUNS; exits with 77 if there is no tmux.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SKIPPED = 77
TMUX = shutil.which("tmux")
MOST_SECONDS = 120
BRAILLE = re.compile("[\u2801-\u28ff]")
LABEL_COLUMNS = 12


class Session:
    """One window of a tmux server that nothing else uses."""

    def __init__(self, directory, columns, rows, command):
        self.environment = {**os.environ, "LC_ALL": "C.UTF-8", "TMUX_TMPDIR": str(directory)}
        self.environment.pop("TMUX", None)
        self.call("new-session", "-d", "-x", str(columns), "-y", str(rows), command)

    def call(self, *words, check=True):
        result = subprocess.run([TMUX, "-u", "-L", "watch", "-f", "/dev/null", *words], env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=MOST_SECONDS)
        assert result.returncode == 0 or not check, (words, result.stderr)
        return result

    def screen(self):
        return self.call("capture-pane", "-p").stdout.split("\n")[:-1]

    def wait_for(self, is_met):
        """Returns the lines of the screen once `is_met` accepts them."""
        end = time.monotonic() + MOST_SECONDS
        while not is_met(lines := self.screen()):
            assert time.monotonic() < end, "never as wanted:\n" + "\n".join(lines)
            time.sleep(0.02)
        return lines

    def wait_for_end(self):
        end = time.monotonic() + MOST_SECONDS
        while self.call("has-session", check=False).returncode == 0:
            assert time.monotonic() < end, "the session does not end:\n" + "\n".join(self.screen())
            time.sleep(0.02)

    def close(self):
        self.call("kill-server", check=False)


def heights(lines):
    """Returns the row of the highest dot of each column with a curve; rows count from the top."""
    found = {}
    for row, line in enumerate(lines):
        for column, letter in enumerate(line):
            if BRAILLE.match(letter):
                found.setdefault(column - LABEL_COLUMNS, row)
    return found


def check_curves(lines, columns):
    """Checks losses falling from 2.1 to 0.1: the curve starts at the top left and ends at the bottom right."""
    axis = next(i for i, line in enumerate(lines) if re.match(r" {12}0 .*999$", line))
    assert len(lines[axis]) == columns, (columns, lines[axis])
    assert lines[1].split()[0] == "2.1", lines[1]
    assert lines[axis - 1].split()[0].startswith("0.1"), lines[axis - 1]
    assert "▲" in lines[axis], lines[axis]
    highest = heights(lines[:axis])
    assert min(highest) == 0 and max(highest) == columns - LABEL_COLUMNS - 1, sorted(highest)
    assert highest[0] == 1 and highest[max(highest)] == axis - 1, highest
    rows = [highest[column] for column in sorted(highest)]
    assert rows == sorted(rows), "a falling curve does not fall"


def use(session):
    # The screen is complete, down to both ends of the value axis, and names
    # each run.
    lines = session.wait_for(lambda lines: len(lines) == 30 and "q quit" in lines[-1])
    check_curves(lines, 100)
    text = "\n".join(lines)
    for phrase in ("loss  (", "fast  step 999", "slow  step 999", "saved at 700", "slowest", "warnings, the last one"):
        assert phrase in text, (phrase, text)
    session.call("send-keys", "Left")
    lines = session.wait_for(lambda lines: lines[0].startswith("accuracy  ("))
    session.call("send-keys", "Right", "+")
    lines = session.wait_for(lambda lines: lines[0].startswith("loss  (last 1/2 of the steps"))
    assert any(re.match(r" {12}500 .*999$", line) for line in lines), lines
    session.call("send-keys", "-")
    session.wait_for(lambda lines: lines[0].startswith("loss  (last entry"))
    for columns, rows in ((60, 20), (140, 40)):
        session.call("resize-window", "-x", str(columns), "-y", str(rows))
        lines = session.wait_for(
            lambda lines: len(lines) == rows and "q quit" in lines[-1]
            and any(len(line) == columns and line.startswith(" " * 12 + "0 ") for line in lines))
        check_curves(lines, columns)
    session.call("send-keys", "q")


def main():
    if not TMUX:
        print("no tmux; watch was not tested in it")
        return SKIPPED
    tool, page_runs = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        writer = subprocess.Popen([page_runs, directory / "runs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        writer.stdout.readline()
        writer.stdin.close()
        writer.wait()
        code = directory / "code"
        session = Session(directory, 100, 30, f"'{tool}' watch '{directory}/runs'; echo $? > '{code}'")
        try:
            use(session)
            session.wait_for_end()
        finally:
            session.close()
        assert code.read_text() == "0\n", code.read_text()
    return 0


if __name__ == "__main__":
    sys.exit(main())
