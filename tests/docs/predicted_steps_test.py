#!/usr/bin/env python3
"""Compares docs/reference/predicted_steps.md with what its commands print.

usage: predicted_steps_test.py TOOL PAGE [--write]
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def main(tool, page, *rest):
    text = page.read_text()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        # The models are in the order of the names in the text before them.
        for model, config in zip(re.findall(r"`([\w-]+)/config\.json`", text), re.findall(r"```json\n(.*?)```", text, re.DOTALL)):
            (directory / model).mkdir()
            (directory / model / "config.json").write_text(config)

        def output(command):
            words = command.removeprefix("accelerate-cpp ").split()
            return subprocess.run([tool, *words], cwd=directory, capture_output=True, text=True, check=True).stdout

        def rerun(block):
            commands = re.findall(r"^\$ (.*)$", block[1], re.MULTILINE)
            return "```console\n" + "".join(f"$ {command}\n{output(command)}" for command in commands) + "```"

        found = re.sub(r"```console\n(.*?)```", rerun, text, flags=re.DOTALL)
    if "--write" in rest:
        page.write_text(found)
    elif found != text:
        sys.exit(f"{page} is not what its commands print; write it with {sys.argv[0]} TOOL PAGE --write")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), *sys.argv[3:])
