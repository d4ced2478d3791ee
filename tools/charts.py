#!/usr/bin/env python3
"""Puts the newest figures of benchmarks/results/*.jsonl into the tables of docs/benchmarks.md and the charts of docs/images.

usage: charts.py ROOT           (writes both)
       charts.py ROOT --check   (fails unless each table and chart shows recorded figures, and each missed goal is listed)

benchmarks/page.json lists groups of rows. A row names a case and a metric. Its baseline is the one of the same run, or that of the metric
named by "peer", measured on the same machine and day. "goal" limits the ratio or, with a unit, the figure itself. The check takes the
records that the page's machine and date name, so that runs on other machines or days leave it valid.
"""
import json
import re
import sys
import textwrap
from html import escape
from pathlib import Path

BEGIN, END = "<!-- Written by tools/charts.py: begin -->", "<!-- Written by tools/charts.py: end -->"
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
WIDTH, BARS, LONGEST, ROW, TOP = 720, 308, 290, 36, 62


def read_records(root):
    """Returns the records of each case, oldest first. A peer's metric begins with its name."""
    records = {}
    for path in sorted((root / "benchmarks/results").glob("*.jsonl")):
        records[path.stem] = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records[path.stem]:
            if "peer" in record and not record["metric"].startswith("python_"):
                record["metric"] = "python_" + record["metric"]
    return records


def shown(row, record, peer):
    """Returns ours, baseline and ratio of a record, each None if unknown, and which of the first two was computed from the others.

    The value of a record in "x" is its ratio, and "unit" of the row is the baseline's.
    """
    unit, ours, ratio = record.get("unit", ""), record.get("value"), record.get("ratio") or None
    baseline = record.get("baseline") or None
    if peer:
        baseline, ratio = peer["value"], None
        if unit in SECONDS and peer.get("unit") in SECONDS:
            baseline *= SECONDS[peer["unit"]] / SECONDS[unit]
    elif row.get("baseline") is False:
        return {"unit": unit, "ours": ours, "baseline": None, "ratio": None, "computed": ""}
    if unit in ("x", "ratio"):
        unit, ours = row.get("unit", ""), None
    computed = ""
    if ours is not None and baseline is not None:
        ratio = ours / baseline
    elif ratio and baseline is not None:
        ours, computed = ratio * baseline, "ours"
    elif ratio and ours is not None:
        baseline, computed = ours / ratio, "baseline"
    return {"unit": unit, "ours": ours, "baseline": baseline, "ratio": ratio, "computed": computed}


def choose(row, records, place=None):
    """Returns the newest complete figure of a row; with `place`, the one of that machine and date; None if there is none."""
    names, found = [row["metric"], row.get("peer")], {}
    for number, record in enumerate(records.get(row["case"], [])):
        if record["metric"] in names:
            of_day = found.setdefault((record["machine"], record["date"]), {})
            of_day[record["metric"]] = record
            of_day["last"] = (record["date"], number)
    best = None
    for key, of_day in found.items():
        if row["metric"] not in of_day or (row.get("peer") and row["peer"] not in of_day) or place not in (None, key):
            continue
        figure = shown(row, of_day[row["metric"]], of_day.get(row.get("peer")))
        known = figure["ours"] if row.get("baseline") is False else figure["ratio"]
        if known is not None and (best is None or of_day["last"] > best["last"]):
            best = {**figure, "machine": key[0], "date": key[1], "last": of_day["last"]}
    return best


def number(value, digits=4):
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def quantity(value, unit, digits=4):
    if value is None:
        return ""
    units = list(SECONDS)
    while unit in units[:-1] and value >= 10000:
        value, unit = value / 1000, units[units.index(unit) + 1]
    return number(value, digits) + {"1/s": " per second", "": ""}.get(unit, f" {unit}")


def ratio_text(ratio):
    return "" if ratio is None else "< 0.001" if ratio < 0.001 else f"{ratio:.2g}" if ratio < 0.1 else f"{round(ratio, 3):g}"


def name_of(row):
    return row["figure"] + (f" ({row['detail']})" if "detail" in row else "")


def is_missed(row, figure):
    if "goal" not in row:
        return False
    measured = figure["ours"] if " " in row["goal"] else figure["ratio"]
    limit = float(row["goal"].split()[0])
    return measured < limit if row.get("higher") else measured > limit


def goal_text(row):
    if "goal" not in row:
        return ""
    limit, _, unit = row["goal"].partition(" ")
    return ("≥ " if row.get("higher") else "≤ ") + (quantity(float(limit), unit) if unit else limit)


def text_of(figure, side):
    is_computed = figure["computed"] == side
    return ("≈ " if is_computed else "") + quantity(figure[side], figure["unit"], 3 if is_computed else 4)


def table_of(group, figures):
    lines = ["| case | figure | ours | baseline | ratio | goal | machine | date |", "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row, figure in zip(group["rows"], figures):
        texts = {side: text_of(figure, side) for side in ("ours", "baseline")}
        texts["ratio"] = ratio_text(figure["ratio"])
        if is_missed(row, figure):
            side = "ours" if " " in row["goal"] else "ratio"
            texts[side] = f"**{texts[side]}**"
        lines.append(f"| {row['case']} | {name_of(row)} | {texts['ours']} | {texts['baseline']} | {texts['ratio']} | {goal_text(row)} "
                     f"| {figure['machine']} | {figure['date']} |")
    return lines


def bars_of(row, figure, y):
    """Returns the SVG of a row: its name, and two bars whose longer one has the full length."""
    ours, baseline, unit = figure["ours"], figure["baseline"], figure["unit"]
    if row.get("baseline") is False:
        baseline = float(row["goal"].split()[0])
    if ours is None:
        ours, baseline, unit = figure["ratio"], 1.0, ""
    parts = [f'<text x="{BARS - 10}" y="{y + 16}" text-anchor="end">{escape(row["figure"].replace("`", ""))}</text>']
    for style, value, top in (("ours", ours, y), ("baseline", baseline, y + 13)):
        length = max(2.0, LONGEST * value / max(ours, baseline))
        parts.append(f'<rect class="{style}" x="{BARS}" y="{top}" width="{length:.1f}" height="11" rx="2"/>')
        parts.append(f'<text class="value" x="{BARS + length + 6:.1f}" y="{top + 9.5}">{quantity(value, unit, 3 if figure["computed"] == style else 4)}</text>')
    return parts


def chart_of(group, figures):
    drawn = [pair for pair in zip(group["rows"], figures) if pair[0].get("chart")] or list(zip(group["rows"], figures))
    height = TOP + ROW * len(drawn) + 8
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" '
           f'aria-label="{escape(group["title"])}">',
           "<style>text{font:12.5px system-ui,sans-serif;fill:#1f2328}.title{font-size:15px;font-weight:600}.value{font-size:11px}"
           ".page{fill:#fff}.ours{fill:#0969da}.baseline{fill:#afb8c1}"
           "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.ours{fill:#4493f8}.baseline{fill:#656d76}}</style>",
           f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
           f'<text class="title" x="16" y="26">{escape(group["title"])}</text>',
           f'<rect class="ours" x="{BARS}" y="36" width="11" height="11" rx="2"/><text x="{BARS + 17}" y="46">{escape(group["ours"])}</text>',
           f'<rect class="baseline" x="{BARS + 160}" y="36" width="11" height="11" rx="2"/>'
           f'<text x="{BARS + 177}" y="46">{escape(group["baseline"])}</text>',
           f'<text class="value" x="{WIDTH - 16}" y="26" text-anchor="end">{escape(group.get("note", "shorter is better"))}</text>']
    for index, (row, figure) in enumerate(drawn):
        svg += bars_of(row, figure, TOP + ROW * index)
    return "\n".join([*svg, "</svg>"]) + "\n"


def render(groups, records, places):
    """Returns the generated part of the page, and the text of each chart by path. `places` maps a row's case and name to machine and date."""
    page, charts, missed = [BEGIN], {}, []
    for group in groups:
        figures = []
        for row in group["rows"]:
            key = (row["case"], name_of(row))
            figure = choose(row, records, places.get(key))
            if figure is None:
                sys.exit(f"benchmarks/results/{row['case']}.jsonl has no figure for \"{row['figure']}\" {places.get(key, '')}")
            figures.append(figure)
            missed += [row["metric"]] if is_missed(row, figure) else []
        path = f"images/{group['name']}.svg"
        charts["docs/" + path] = chart_of(group, figures)
        page += ["", f"## {group['title']}", "", *textwrap.wrap(group["about"], 120, break_on_hyphens=False), "", f"![{group['title']}]({path})", "", *table_of(group, figures)]
    return "\n".join([*page, "", END]), charts, missed


def places_on(page):
    """Returns the machine and date that the page shows, by case and name of the row."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    return {(cells[0], cells[1]): (cells[-2], cells[-1]) for cells in lines if len(cells) == 8}


def main():
    root, check = Path(sys.argv[1]), sys.argv[2:] == ["--check"]
    path = root / "docs/benchmarks.md"
    page = path.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    groups = json.loads((root / "benchmarks/page.json").read_text())
    part, charts, missed = render(groups, read_records(root), places_on(page) if check else {})
    wanted = {"docs/benchmarks.md": before + part + after, **charts}
    bad = 0
    for name, text in wanted.items():
        file = root / name
        if check and (not file.exists() or file.read_text() != text):
            print(f"{name} does not show what benchmarks/results and benchmarks/page.json give: python3 tools/charts.py .")
            bad += 1
        elif not check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
    for metric in missed:
        if f"`{metric}`" not in after:
            print(f"docs/benchmarks.md: the goal of `{metric}` is missed; list it below the tables")
            bad += 1
    print(f"{sum(len(group['rows']) for group in groups)} rows, {len(charts)} charts, {bad} mistakes")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
