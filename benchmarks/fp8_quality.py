#!/usr/bin/env python3
"""Measures how well examples/gpt learns in float8: the loss after 500 steps with each recipe, over the loss in bf16 with the same seed.

usage: fp8_quality.py BUILD [--steps 500] [--seeds 3] [--jobs N] [--recipes tensorwise,...] [--learning_rate 1e-3] [--curves FILE.svg]

A step has 64 samples; the learning rate, 1e-3, warms up over a tenth of the steps and falls to 0 along a cosine. With it, bf16 and
fp32 end within 0.1 % of each other. With the example's own 3e-3 (--learning_rate), runs that differ only in rounding leave the
first plateau of the loss at different steps, and end up to 3 % apart. A run uses one thread and takes some three minutes.

RECIPE_final_loss   the mean loss of the last 50 steps, whose batches are the same in each run: per seed, and over all seeds the
                    mean of the ratios with its standard error
--curves            draws the losses of all runs, and their ratios to bf16
FP8_QUALITY_TEXT    names a source tree or text to use instead of this checkout's.
"""
import argparse
import concurrent.futures
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Full precision shows how far apart two runs drift that differ only in rounding.
CONTROL = "fp32"
RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp", "delayed", "mxfp8", "msamp"]
LAST = 50
COLORS = ["#000000", "#999999", "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#d55e00"]


def flags_of(name):
    if name == "bf16":
        return ["--precision", "bf16"]
    return ["--precision", "no"] if name == CONTROL else ["--precision", "fp8", "--fp8_recipe", name]


def losses_of(gpt, arguments, name, seed):
    steps = arguments.steps
    schedule = ["--learning_rate", arguments.learning_rate, "--lr_scheduler_type", "cosine", "--num_warmup_steps", str(steps // 10)]
    with tempfile.TemporaryDirectory() as directory:
        command = [gpt, "--steps", str(steps), "--batch_size", "64", "--seed", str(seed), "--project_dir", directory, "--text",
                   os.environ.get("FP8_QUALITY_TEXT", str(ROOT)), *schedule, *flags_of(name)]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", result.stdout, re.M)]
    if result.returncode or len(losses) != steps:
        raise RuntimeError(f"{' '.join(command)} ended with {result.returncode} after {len(losses)} steps")
    return losses


def smoothed(losses):
    """Returns the mean of the LAST losses up to each step."""
    return [statistics.mean(losses[max(0, i + 1 - LAST):i + 1]) for i in range(len(losses))]


def panel(top, curves, low, high, marks, title):
    """Returns an SVG of curves (name -> values by step) between two values, without the first LAST steps."""
    left, width, height = 60, 640, 200

    def place(step, count, value):
        return f"{left + width * step / (count - 1):.1f},{top + height * (high - value) / (high - low):.1f}"

    parts = [f'<text x="{left}" y="{top - 8}">{title}</text>',
             f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>']
    for mark in marks:
        y = top + height * (high - mark) / (high - low)
        parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="#ddd"/><text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for (name, values), color in zip(curves.items(), COLORS):
        points = " ".join(place(i, len(values), min(max(v, low), high)) for i, v in enumerate(values) if i >= LAST)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.3"><title>{name}</title></polyline>')
    return parts


def draw(path, curves):
    """Draws `curves`: name -> smoothed losses, averaged over seeds."""
    steps = len(curves["bf16"])
    ratios = {name: [a / b for a, b in zip(values, curves["bf16"])] for name, values in curves.items()}
    shown = [value for values in curves.values() for value in values[LAST:]]
    low, high = math.floor(min(shown)), math.ceil(max(shown))
    svg = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 530" font-family="sans-serif" font-size="12">',
           '<rect width="860" height="530" fill="#fff"/>',
           *panel(30, curves, low, high, range(low, high + 1), f"loss, mean of {LAST} steps (nats per byte)"),
           *panel(280, ratios, 0.97, 1.03, [0.97, 0.98, 0.99, 1, 1.01, 1.02, 1.03], "over bf16")]
    for i in range(0, steps + 1, 100):
        svg.append(f'<text x="{60 + 640 * i / steps:.0f}" y="500" text-anchor="middle">{i}</text>')
    svg.append('<text x="380" y="520" text-anchor="middle">step</text>')
    for i, (name, color) in enumerate(zip(curves, COLORS)):
        svg.append(f'<path d="M712 {40 + 18 * i}h16" stroke="{color}" stroke-width="3"/><text x="734" y="{44 + 18 * i}">{name}</text>')
    Path(path).write_text("\n".join([*svg, "</svg>"]) + "\n")


def report(metric, loss, baseline, ratio, **more):
    print(json.dumps({"case": "fp8_quality", "metric": metric, "value": round(loss, 4), "unit": "nats",
                      "baseline": round(baseline, 4), "ratio": round(ratio, 4), **more}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at once, one thread each")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--learning_rate", default="1e-3")
    parser.add_argument("--curves", help="an SVG file")
    arguments = parser.parse_args()
    gpt = str(Path(arguments.build).resolve() / "bin" / "gpt")
    names = [CONTROL, *arguments.recipes.split(",")]
    ratios, losses, baselines = {name: [] for name in names}, {name: [] for name in names}, []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {(name, seed): pool.submit(losses_of, gpt, arguments, name, seed)
                for seed in range(1, arguments.seeds + 1) for name in ["bf16", *names]}
        for seed in range(1, arguments.seeds + 1):
            bf16 = statistics.mean(runs["bf16", seed].result()[-LAST:])
            baselines.append(bf16)
            for name in names:
                loss = statistics.mean(runs[name, seed].result()[-LAST:])
                losses[name].append(loss)
                ratios[name].append(loss / bf16)
                report(f"{name}_final_loss", loss, bf16, loss / bf16, seed=seed)
    for name in names:
        error = statistics.stdev(ratios[name]) / len(ratios[name]) ** 0.5 if arguments.seeds > 1 else 0.0
        report(f"{name}_final_loss_over_bf16", statistics.mean(losses[name]), statistics.mean(baselines),
               statistics.mean(ratios[name]), standard_error=round(error, 4), seeds=arguments.seeds)
    if arguments.curves:
        draw(arguments.curves, {name: [statistics.mean(at_step) for at_step in
                                       zip(*(smoothed(runs[name, seed].result()) for seed in range(1, arguments.seeds + 1)))]
                                for name in ["bf16", *names]})


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(str(error))
