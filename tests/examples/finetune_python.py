"""Makes and exports a model in Python, fine-tunes it with examples/finetune, and evaluates what it saved in Python.

usage: python finetune_python.py ACCELERATE_CPP FINETUNE
Exits with 77 if torch, transformers or numpy is missing.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy  # noqa: F401
    import torch
    import transformers  # noqa: F401
except ImportError as missing:
    print(f"skipped: this Python has no package {missing.name}")
    sys.exit(77)
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11):
    print(f"skipped: torch {torch.__version__} is older than 2.11")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]


def run(*command):
    print("$", *command, flush=True)
    result = subprocess.run([str(part) for part in command], text=True, capture_output=True)
    print(result.stdout, end="", flush=True)
    if result.returncode:
        sys.exit(f"{command[0]} failed:\n{result.stderr}")
    return result.stdout


def losses(text):
    return [float(line.split()[-1]) for line in text.splitlines() if "evaluation: loss" in line]


def main():
    tool, finetune = sys.argv[1:3]
    example = ROOT / "examples/finetune"
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        text = (ROOT / "docs/quick_start.md").read_bytes()
        Path("text").write_bytes(text[:8000])
        run(sys.executable, example / "make_model.py", "model", "--width", "32")
        run(sys.executable, example / "export.py", "model")
        flags = ["--train", "text", "--block_size", 64, "--steps", 6, "--learning_rate", "1e-2", "--output", "tuned"]
        begin, end = losses(run(tool, "launch", "--num_processes", 2, finetune, "--model", "model", *flags))
        for folder, expected in (("model", begin), ("tuned", end)):
            (found,) = losses(run(sys.executable, example / "evaluate.py", folder, "text", "--block_size", "64"))
            if abs(found - expected) > 2e-4:
                sys.exit(f"'{folder}': Python's loss is {found}, and was {expected} here")
        if not end < begin - 0.5:
            sys.exit("it does not learn")
    print("all as expected")


if __name__ == "__main__":
    main()
