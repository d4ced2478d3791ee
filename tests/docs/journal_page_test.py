"""The reader of journals on a page must print what the tool exports.

usage: journal_page_test.py TOOL PAGE_RUNS PAGE
"""
import csv
import re
import subprocess
import sys
import tempfile
from pathlib import Path

tool, page_runs, page = sys.argv[1:]
with tempfile.TemporaryDirectory() as directory:
    program = Path(directory) / "read_journal.py"
    program.write_text(re.search(r'```python title="read_journal.py"\n(.*?)```', Path(page).read_text(), re.S)[1])
    writer = subprocess.Popen([page_runs, f"{directory}/runs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline(), "page_runs wrote nothing"
    checked = 0
    for journal in Path(directory, "runs").rglob("journal"):
        printed = subprocess.run([sys.executable, program, journal], check=True, capture_output=True, text=True).stdout
        read = {(step, name): float(value) for step, name, value in (line.split(" ", 2) for line in printed.splitlines())}
        exported = subprocess.run([tool, "runs", "export", journal.parent], check=True, capture_output=True, text=True).stdout
        for row in csv.DictReader(exported.splitlines()):
            key = (row["step"], row["name"])
            if key in read:
                assert read[key] == float(row["value"]), (key, read[key], row["value"])
                checked += 1
    writer.communicate("")
    assert checked > 10, f"only {checked} figures were compared"
    print(checked, "figures as exported")
