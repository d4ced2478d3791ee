#!/usr/bin/env python3
"""Records the tool on a terminal, as animated pictures: docs/images/{launch,watch,config}.svg.

usage: recordings.py ROOT TOOL PROGRAM...   PROGRAM: `digits`, which launch starts; pyte (PyPI) must be installed

`config` is drawn from docs/reference/config_questions.cast, which a test compares with the tool. The others are recorded
anew, so their figures change from run to run.
"""
import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

import pyte

COLUMN, LINE, LEFT, TOP = 7.22, 16, 12, 34
COLOURS = {"red": "#ff7b72", "green": "#56d364", "brown": "#e3b341", "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#56d4dd",
           "white": "#e6edf3", "black": "#6e7681", "default": "#e6edf3"}


def colour_of(name):
    name = name.removeprefix("bright")
    return COLOURS.get(name, f"#{name}" if re.fullmatch(r"[0-9a-f]{6}", name) else COLOURS["default"])


def frames_of(pieces, columns, lines, least=0.2):
    """Plays (second, output) on a terminal. Returns (second, {line: [(column, text, colour, bold)]}) after each change, at
    most one in `least` seconds."""
    screen = pyte.Screen(columns, lines)
    stream, frames = pyte.Stream(screen), []
    for second, text in pieces:
        stream.feed(text)
        shown = {}
        for number in range(lines):
            row, spans = screen.buffer[number], []
            for column in range(columns):
                cell = row[column]
                style = (colour_of(cell.fg), cell.bold)
                if cell.data == " ":
                    if spans and spans[-1][0] + len(spans[-1][1]) == column:
                        spans[-1] = (spans[-1][0], spans[-1][1] + " ", *spans[-1][2:])
                    continue
                if spans and spans[-1][2:] == style and spans[-1][0] + len(spans[-1][1]) == column:
                    spans[-1] = (spans[-1][0], spans[-1][1] + cell.data, *style)
                else:
                    spans.append((column, cell.data, *style))
            if spans:
                shown[number] = [(column, text.rstrip(), *style) for column, text, *style in spans]
        if frames and second - frames[-1][0] < least:      # what nobody can see, or need see
            frames[-1] = (frames[-1][0], shown)
        elif not frames or frames[-1][1] != shown:
            frames.append((second, shown))
    return frames


def svg(title, frames, columns, lines, last=3.0):
    """An SVG that shows the frames one after another, again and again, or the last one where nothing should move. A line
    that stays is drawn once."""
    width, height = round(columns * COLUMN + 2 * LEFT), lines * LINE + TOP + 12
    total = frames[-1][0] + last
    rows = {}                                              # (line, spans) -> [(from, to)]
    for place, (second, shown) in enumerate(frames):
        end = frames[place + 1][0] if place + 1 < len(frames) else total
        for number, spans in shown.items():
            times = rows.setdefault((number, tuple(spans)), [])
            if times and abs(times[-1][1] - second) < 1e-9:
                times[-1] = (times[-1][0], end)
            else:
                times.append((second, end))
    body, styles, hidden, names = [], [], [], {}
    for (number, spans), times in sorted(rows.items()):
        keys = ["0%{opacity:0}"] if times[0][0] > 0 else []
        for begin, end in times:
            keys.append(f"{100 * begin / total:.2f}%{{opacity:1}}")
            if end < total:
                keys.append(f"{100 * end / total:.2f}%{{opacity:0}}")
        key = "".join(keys)
        if key not in names:
            names[key] = f"k{len(names)}"
            if times[-1][1] < total:
                hidden.append(f".{names[key]}")
            if key != "0.00%{opacity:1}":
                styles.append(f"@keyframes {names[key]}{{{key}}}.{names[key]}{{animation:{names[key]} {total:.1f}s step-end infinite}}")
        drawn = "".join(
            f'<tspan x="{LEFT + column * COLUMN:.1f}" fill="{colour}"{" font-weight=" + chr(34) + "bold" + chr(34) if bold else ""}>{escape(text)}</tspan>'
            for column, text, colour, bold in spans)
        body.append(f'<text class="{names[key]}" y="{TOP + (number + 1) * LINE - 4}">{drawn}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
        f'<style>text{{font:12px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}.title{{fill:#9198a1}}'
        f'{",".join(hidden)}{{opacity:0}}@media(prefers-reduced-motion:no-preference){{{"".join(styles)}}}</style>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
        f'<text class="title" x="{width / 2:g}" y="22" text-anchor="middle">{escape(title)}</text>', *body, "</svg>", ""])


def typed(command, second=0.3):
    """The pieces of a command being typed, and when it is sent."""
    pieces = [(second, "$ ")]
    for place in range(0, len(command), 4):
        second += 0.15
        pieces.append((second, command[place:place + 4]))
    return [*pieces, (second + 0.5, "\r\n")], second + 0.5


def record(command, directory, tool, columns, lines, seconds=None, keys=()):
    """Runs a command on a terminal, for at most `seconds`; presses (second, key). Returns its pieces."""
    pieces, start_at = typed(command)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(directory)
        path = f"{Path(tool).parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "TERM": "xterm-256color", "HOME": directory, "LANG": "C.UTF-8", "COLUMNS": str(columns),
                       "LINES": str(lines), "CUDA_VISIBLE_DEVICES": ""}
        time.sleep(0.2)
        os.execve("/bin/sh", ["sh", "-c", command], environment)
    import fcntl
    import struct
    import termios
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    begin, keys, decoder = time.monotonic(), list(keys), __import__("codecs").getincrementaldecoder("utf-8")("replace")
    while True:
        now = time.monotonic() - begin
        while keys and keys[0][0] <= now:
            os.write(terminal, keys.pop(0)[1].encode())
        if seconds is not None and now > seconds:
            break
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                text = os.read(terminal, 65536)
            except OSError:
                break
            if not text:
                break
            pieces.append((start_at + now, decoder.decode(text)))
    os.close(terminal)
    os.waitpid(child, 0)
    return pieces


def in_seconds(pieces, seconds):
    """The same, played faster if it took longer."""
    return [(second * min(1.0, seconds / pieces[-1][0]), text) for second, text in pieces]


def main():
    root, tool, program = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve()
    images = root / "docs/images"
    lines = (root / "docs/reference/config_questions.cast").read_text().splitlines()
    pieces = [(second, text) for second, _, text in (json.loads(line) for line in lines[1:])]
    (images / "config.svg").write_text(svg("accelerate-cpp config", frames_of(pieces, 100, 32), 100, 32))
    with tempfile.TemporaryDirectory() as directory:
        os.symlink(program, f"{directory}/train")
        command = "accelerate-cpp launch --num_processes 2 ./train --epochs 15"
        pieces = in_seconds(record(command, directory, tool, 90, 16), 12)
        (images / "launch.svg").write_text(svg("accelerate-cpp launch", frames_of(pieces, 90, 16, 1.0), 90, 16))
        # Another run is watched while it trains.
        run = subprocess.Popen([tool, "launch", "--num_processes", "2", "./train"], cwd=directory, stdout=subprocess.DEVNULL)
        while len(list(Path(directory, "digits_run").iterdir())) < 2:
            time.sleep(0.1)
        pieces = record("accelerate-cpp watch digits_run", directory, tool, 100, 26, 14, [(13.5, "q")])
        run.wait()
        (images / "watch.svg").write_text(svg("accelerate-cpp watch", frames_of(pieces, 100, 26, 0.9), 100, 26))
    for name in ("launch", "watch", "config"):
        print(images / f"{name}.svg", (images / f"{name}.svg").stat().st_size, "bytes")


main()
