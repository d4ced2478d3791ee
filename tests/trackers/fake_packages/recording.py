"""Shared by the fake packages: objects that record everything done to them.

Each call becomes a line [what, arguments, named arguments] of the file named by the variable RECORDED_CALLS.
"""
import json
import math
import os


def plain(value):
    if isinstance(value, Recorder):
        return f"<{object.__getattribute__(value, 'what')}>"
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if hasattr(value, "dtype"):
        return {"array": [str(value.dtype), list(value.shape)]}
    return value


def record(what, arguments, named):
    with open(os.environ["RECORDED_CALLS"], "a", encoding="utf-8") as file:
        file.write(json.dumps([what, plain(arguments), plain(named)]) + "\n")


class Recorder:
    def __init__(self, what):
        object.__setattr__(self, "what", what)

    def __getattr__(self, name):
        return Recorder(f"{object.__getattribute__(self, 'what')}.{name}")

    def __setattr__(self, name, value):
        record(f"{object.__getattribute__(self, 'what')}.{name} =", [value], {})

    def __setitem__(self, name, value):
        record(f"{object.__getattribute__(self, 'what')}[{name!r}] =", [value], {})

    def __call__(self, *arguments, **named):
        what = object.__getattribute__(self, "what")
        record(what, arguments, named)
        return Recorder(what + "()")
