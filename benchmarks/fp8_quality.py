#!/usr/bin/env python3
"""How well examples/gpt learns in float8: the loss after 500 steps by each recipe, over that in bf16.

usage: fp8_quality.py BUILD [STEPS]    (eight runs of examples/gpt, one after the other: some 15 minutes)

final_loss       of the last step, the same batch in each run
mean_loss        of the last 50 steps
FP8_QUALITY_TEXT names another source tree or text than this checkout's.
"""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Full precision shows how far two runs drift apart that differ in rounding only.
CONTROL = ["--precision", "no"]
RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp", "delayed", "mxfp8", "msamp"]
LAST = 50


def losses_of(gpt, flags, steps):
    with tempfile.TemporaryDirectory() as directory:
        command = [gpt, "--steps", str(steps), "--project_dir", directory, "--text", os.environ.get("FP8_QUALITY_TEXT", str(ROOT)), *flags]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", result.stdout, re.M)]
    if result.returncode or len(losses) != steps:
        sys.exit(f"{' '.join(command)} ended with {result.returncode} after {len(losses)} steps")
    return losses


def report(recipe, metric, loss, baseline):
    print(json.dumps({"case": "fp8_quality", "metric": f"{recipe}_{metric}", "value": round(loss, 4), "unit": "nats",
                      "baseline": round(baseline, 4), "ratio": round(loss / baseline, 4)}), flush=True)


def main():
    gpt = str(Path(sys.argv[1]).resolve() / "bin" / "gpt")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    bf16 = losses_of(gpt, ["--precision", "bf16"], steps)
    runs = {"fp32": CONTROL} | {recipe: ["--precision", "fp8", "--fp8_recipe", recipe] for recipe in RECIPES}
    for recipe, flags in runs.items():
        losses = losses_of(gpt, flags, steps)
        report(recipe, "final_loss", losses[-1], bf16[-1])
        report(recipe, "mean_loss", statistics.mean(losses[-LAST:]), statistics.mean(bf16[-LAST:]))


main()
