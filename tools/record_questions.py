#!/usr/bin/env python3
"""Records `accelerate-cpp config` on a terminal, in docs/reference/config_questions.cast (asciicast v2, for asciinema) and as text in
docs/reference/config_questions.md.

usage: record_questions.py TOOL DOCS_REFERENCE [--check]; --check exits with 1 if these files differ from a new recording.
"""
import json
import os
import pty
import select
import sys
import tempfile
from pathlib import Path

# The answers typed at the terminal; every later question gets an empty line.
TYPED = ["5", "<", "2", "one", "1"]
PROMPT = ("]: ", ": ")
PER_KEY, PER_ANSWER = 0.15, 0.9
PAGE = """# The questions of `accelerate-cpp config`

An empty line takes the answer in brackets, `<` goes back to the question before, and what cannot be an answer is asked again.
[The recording](config_questions.cast) plays in a terminal: `asciinema play docs/reference/config_questions.cast`. Both are made by
`tools/record_questions.py`; a test keeps them equal to what the tool asks.

![The questions on a terminal](../images/config.svg)

```console
"""


def record(tool, directory):
    """Returns the pieces of the session in order: ("said", output) or ("typed", answer)."""
    environment = {"PATH": os.environ.get("PATH", ""), "TERM": "xterm", "CUDA_VISIBLE_DEVICES": "", "HOME": directory}
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(directory)
        os.execve(tool, ["accelerate-cpp", "config", "--config_file", "config.yaml"], environment)
    answers = list(TYPED)
    pieces, text = [], ""
    while True:
        if not select.select([terminal], [], [], 30)[0]:
            raise SystemExit("the tool asked nothing for 30 seconds: " + repr(text))
        try:
            got = os.read(terminal, 4096).decode()
        except OSError:
            got = ""
        if not got:
            break
        text += got
        # A question is text after the last line break that ends like a prompt.
        if text.rsplit("\n", 1)[-1].endswith(PROMPT):
            answer = answers.pop(0) if answers else ""
            pieces += [("said", text), ("typed", answer)]
            text = ""
            os.write(terminal, (answer + "\n").encode())
            # Reads the terminal's echo.
            echo = ""
            while not echo.endswith("\r\n"):
                echo += os.read(terminal, 1 if len(echo) < len(answer) + 2 else 4096).decode()
    pieces.append(("said", text))
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise SystemExit("the tool failed: " + "".join(piece for _, piece in pieces))
    return pieces


def cast_of(pieces):
    lines = [json.dumps({"version": 2, "width": 100, "height": 32, "title": "accelerate-cpp config"})]
    now = 0.0

    def show(pause, text):
        nonlocal now
        now += pause
        lines.append(json.dumps([round(now, 2), "o", text]))

    show(0.5, "$ ")
    for key in "accelerate-cpp config":
        show(PER_KEY / 3, key)
    show(PER_ANSWER, "\r\n")
    for kind, text in pieces:
        if kind == "said":
            show(0.1, text)
        else:
            show(PER_ANSWER, text[:1])
            for key in text[1:]:
                show(PER_KEY, key)
            show(PER_KEY, "\r\n")
    return "\n".join(lines) + "\n"


def page_of(pieces):
    text = "$ accelerate-cpp config\n" + "".join(piece + ("\n" if kind == "typed" else "") for kind, piece in pieces).replace("\r\n", "\n")
    return PAGE + text.rstrip("\n") + "\n```\n"


def main():
    tool, reference = os.path.abspath(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as directory:
        pieces = record(tool, directory)
    made = {"config_questions.cast": cast_of(pieces), "config_questions.md": page_of(pieces)}
    if "--check" not in sys.argv:
        for name, text in made.items():
            (reference / name).write_text(text)
        return
    for name, text in made.items():
        if not (reference / name).exists() or (reference / name).read_text() != text:
            raise SystemExit(f"{name} is not what the tool asks now; run tools/record_questions.py {tool} {reference}")


main()
