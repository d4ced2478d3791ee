#!/usr/bin/env python3
"""Draws the README's chart, docs/images/originals.svg, from docs/images/originals.csv: the time that a task takes, as a
fraction of the time that its Python original takes. The figures are those of docs/benchmarks.md.

usage: originals_chart.py ROOT [--check]; --check only says whether the chart is the one that would be drawn
"""
import csv
import sys
from html import escape
from pathlib import Path

LEFT, BAR, ROW, TOP, WIDTH = 310, 230, 26, 48, 860


def time(ms):
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def chart(rows):
    height = TOP + ROW * len(rows) + 12
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-weight="bold">Time relative to the Python original (less is better)</text>',
        f'<text x="{LEFT}" y="40" fill="#666">0</text>',
        f'<text x="{LEFT + BAR}" y="40" fill="#666" text-anchor="middle">1 = the original</text>',
    ]
    for index, row in enumerate(rows):
        ours, theirs = float(row["ms"]), float(row["original_ms"])
        y = TOP + ROW * index
        drawn += [
            f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(row["task"])}</text>',
            f'<rect x="{LEFT}" y="{y + 2}" width="{BAR}" height="17" fill="#e3e6ea"/>',
            f'<rect x="{LEFT}" y="{y + 2}" width="{BAR * ours / theirs:.1f}" height="17" fill="#2f6fb5"/>',
            f'<text x="{LEFT + BAR + 10}" y="{y + 15}">{time(ours)}'
            f'<tspan fill="#666" dx="8">{escape(row["original"])}: {time(theirs)}</tspan></text>',
        ]
    return "\n".join([*drawn, "</svg>", ""])


def main(root, check):
    image = root / "docs/images/originals.svg"
    with open(root / "docs/images/originals.csv", newline="") as file:
        text = chart(list(csv.DictReader(file)))
    if check:
        if image.read_text() != text:
            print(f"{image} is not what tools/originals_chart.py draws")
            return 1
    else:
        image.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--check" in sys.argv))
