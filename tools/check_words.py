#!/usr/bin/env python3
"""Checks the English of comments, messages and pages for wording that readers stumble over (CONTRIBUTING.md).

Comments must not begin as fragments without a subject; and comments, strings and pages must not use the phrases of
PHRASES.

usage: check_words.py [ROOT]; prints every breach and exits with 1 if there are any.
"""
import re
import sys
from pathlib import Path

FRAGMENT = re.compile(r"^\s*///?\s*(Of|Who|Whose|Whoever|So many|The same, but)\b")
# A short comment that only points somewhere: "In place.", "By role:", "As finish()."
POINTER = re.compile(r"^\s*///? ((?:In|As|By|On|At|With|Without|From|For|Like|Also|After|Before)( [\w'()-]+){1,3}[.:])$")
COMMENT = re.compile(r"^\s*///?(\s|$)")
# The parts of a line of code that are checked: strings and comments.
READ = re.compile(r'"(?:\\.|[^"\\])*"|//.*')
PER = r"(?:once|twice|one|two|three|four|ten|bytes|messages|times|values|\d+)"
PHRASES = [
    (re.compile(r'''(?<=[\w"'`}).,;] )(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|better\b|worse\b|other\b|different\b|such\b)\w+''', re.I),
     'write "is not a"'),
    (re.compile(rf"\b{PER} an? (?:rank|step|node|machine|backward|forward|window|call|micro-step)\b", re.I), 'write "per"'),
    (re.compile(r"\bwhole (?:parameter|gradient|weight|tensor)s?\b", re.I), 'write "full"'),
    (re.compile(r"\bstrangers?\b", re.I), "say which client, program or project"),
    (re.compile(r"\blast words\b", re.I), 'write "last output"'),
    (re.compile(r"\bkeeps? company\b|\b(?:nobody|somebody)'s to\b|\bin (?:its|their|our) own words\b|\bwhat of it\b", re.I),
     "say it plainly"),
    (re.compile(r"\bfor ever\b", re.I), 'write "forever"'),
    (re.compile(r"\{\}\S*; (?:it|they|each|both) (?:is|are) (?:at (?:least|most)|above|below|from|between|one of)\b", re.I),
     'write "X must be ..., but is ..."'),
    (re.compile(r"\bgo(?:es|ing)? on (?:with|without|from)\b", re.I), 'write "continue" or "resume"'),
]
CODE = ("include", "src", "cli", "libexec", "examples", "benchmarks", "tests")
PLANTED = "tests/layers/"


def fragments_in(text):
    """Yields the line number and the word of each comment, or sentence in one, that begins with such a word."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = FRAGMENT.match(line)
        # A line that continues a sentence can begin with any word.
        if found and (not COMMENT.match(before) or re.search(r"(///?|[.:;!?)])\s*$", before)):
            yield number, found[1]
        pointer = POINTER.match(line)
        if pointer and not COMMENT.match(before):
            yield number, pointer[1]
        before = line


def phrases_in(text, is_code):
    """Yields the line number, the phrase and the advice for each phrase found."""
    for number, line in enumerate(text.splitlines(), 1):
        read = " ".join(READ.findall(line)) if is_code else line
        for phrase, advice in PHRASES:
            for found in phrase.finditer(read):
                yield number, found[0], advice


def main(root):
    code = [path for directory in CODE for path in sorted((root / directory).rglob("*")) if path.suffix in (".h", ".cpp")]
    pages = sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md"))
    code = [path for path in code if not path.relative_to(root).as_posix().startswith(PLANTED)]
    count = 0
    for path in code + pages:
        text = path.read_text()
        for number, word in fragments_in(text) if path in code else ():
            print(f'{path}:{number}: a comment begins with "{word}"; give it its own subject')
            count += 1
        for number, phrase, advice in phrases_in(text, path.suffix != ".md"):
            print(f'{path}:{number}: "{phrase}": {advice}')
            count += 1
    print(f"{len(code)} files, {len(pages)} pages, {count} breaches")
    return 1 if count or not code else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)))
