#!/usr/bin/env python3
"""Tests tools/record_bench.py and tools/charts.py: what a benchmark prints is recorded, and the page shows what was recorded."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = "# Benchmarks\n\n<!-- Written by tools/charts.py: begin -->\n<!-- Written by tools/charts.py: end -->\n\nMisses: `load_ms`.\n"
ROWS = [{"case": "clip", "metric": "norm_us", "peer": "python_norm_us", "figure": "norm", "goal": "0.5"},
        {"case": "disk", "metric": "over_floor", "figure": "read", "unit": "ms"},
        {"case": "disk", "metric": "help_ms", "figure": "help", "baseline": False, "goal": "10 ms"}]


class BenchmarkRecords(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="benchmark-records-"))
        self.addCleanup(shutil.rmtree, self.root)
        for directory in ("docs", "benchmarks/results"):
            (self.root / directory).mkdir(parents=True)
        (self.root / "docs/benchmarks.md").write_text(PAGE)
        groups = [{"name": "all", "title": "All & more", "about": "", "ours": "ours", "baseline": "theirs", "rows": ROWS}]
        (self.root / "benchmarks/page.json").write_text(json.dumps(groups))
        self.record("clip", metric="norm_us", value=100, unit="us", baseline=90, ratio=1.1)
        self.record("clip", metric="norm_us", peer="accelerate", value=0.4, unit="ms")
        self.record("disk", metric="over_floor", value=1.25, unit="x", baseline=40, ratio=1.25)
        self.record("disk", metric="help_ms", value=5.3, unit="ms", baseline=0.7, ratio=7.5)

    def record(self, case, machine="2 x CPU", date="2026-01-02", **figure):
        with open(self.root / f"benchmarks/results/{case}.jsonl", "a") as file:
            file.write(json.dumps({"case": case, **figure, "machine": machine, "date": date}) + "\n")

    def charts(self, *arguments):
        return subprocess.run([sys.executable, ROOT / "tools/charts.py", self.root, *arguments], capture_output=True, text=True)

    def page(self):
        return (self.root / "docs/benchmarks.md").read_text()

    def test_the_page_shows_what_was_recorded(self):
        self.assertEqual(self.charts().returncode, 0)
        self.assertIn("| clip | norm | 100 us | 400 us | 0.25 | ≤ 0.5 | 2 x CPU | 2026-01-02 |", self.page())
        self.assertIn("| disk | read | ≈ 50 ms | 40 ms | 1.25 |  | 2 x CPU | 2026-01-02 |", self.page())
        self.assertIn("| disk | help | 5.3 ms |  |  | ≤ 10 ms | 2 x CPU | 2026-01-02 |", self.page())
        self.assertIn("All &amp; more", (self.root / "docs/images/all.svg").read_text())
        self.assertEqual(self.charts("--check").returncode, 0)

    def test_a_changed_page_or_chart_is_found(self):
        self.charts()
        for name, old in (("docs/benchmarks.md", "400 us"), ("docs/images/all.svg", "400 us")):
            text = (self.root / name).read_text()
            (self.root / name).write_text(text.replace(old, "500 us"))
            found = self.charts("--check")
            self.assertEqual(found.returncode, 1)
            self.assertIn(f"{name} does not show what benchmarks/results", found.stdout)
            (self.root / name).write_text(text)

    def test_later_runs_change_the_page_only_when_it_is_written(self):
        self.charts()
        self.record("disk", machine="8 x CPU", date="2026-02-02", metric="help_ms", value=2, unit="ms")
        self.assertEqual(self.charts("--check").returncode, 0)
        self.charts()
        self.assertIn("| disk | help | 2 ms |  |  | ≤ 10 ms | 8 x CPU | 2026-02-02 |", self.page())

    def test_a_peer_is_compared_on_the_same_machine_and_day(self):
        self.record("clip", machine="8 x CPU", date="2026-02-02", metric="norm_us", value=1, unit="us")
        self.charts()
        self.assertIn("| clip | norm | 100 us | 400 us |", self.page())

    def test_missed_goals_must_be_listed(self):
        self.record("disk", metric="help_ms", value=11, unit="ms")
        found = self.charts()
        self.assertEqual(found.returncode, 1)
        self.assertIn("the goal of `help_ms` is missed", found.stdout)
        self.assertIn("| disk | help | **11 ms** |", self.page())

    def test_what_a_benchmark_prints_is_recorded(self):
        printed = 'first\n{"case":"clip","metric":"value_us","value":2}\n{"other":1}\n{"case":"../x","metric":"y"}\n'
        result = subprocess.run(
            [sys.executable, ROOT / "tools/record_bench.py", self.root], input=printed, capture_output=True, text=True, check=True,
            env={**os.environ, "BENCH_RESULTS": str(self.root / "recorded"), "BENCH_MACHINE": "a machine"})
        self.assertEqual(result.stdout, printed)
        self.assertEqual([path.name for path in (self.root / "recorded").iterdir()], ["clip.jsonl"])
        record = json.loads((self.root / "recorded/clip.jsonl").read_text())
        self.assertEqual((record["metric"], record["value"], record["machine"], record["libtorch"]), ("value_us", 2, "a machine", ""))
        self.assertRegex(record["date"], r"^\d{4}-\d\d-\d\d$")


if __name__ == "__main__":
    unittest.main()
