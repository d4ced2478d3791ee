"""The commands of the wheel: finds the build for the torch package beside it, and starts the tool.

Each directory torch-MINOR below is a prefix of the library built with that minor version of LibTorch, because LibTorch's
binary interface changes between them. The tool replaces this process; programs that it launches have no Python.
"""
import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def supported():
    """Returns the minor versions of torch that this wheel has a build for, oldest first."""
    minors = [path.name.removeprefix("torch-") for path in HERE.glob("torch-*")]
    return sorted(minors, key=lambda minor: [int(part) for part in minor.split(".")])


def torch_package():
    """Returns the directory of the torch package and its minor version, or None."""
    spec = importlib.util.find_spec("torch")
    for place in spec.submodule_search_locations or [] if spec else []:
        header = Path(place, "include/torch/headeronly/version.h")
        if header.exists():
            parts = dict(re.findall(r"#define TORCH_VERSION_(\w+) (\d+)", header.read_text()))
            return Path(place), f"{parts['MAJOR']}.{parts['MINOR']}"
    return None


def matching_prefix():
    """Returns the torch package and the prefix built for it; exits with what to install if there is none."""
    known = " or ".join(supported())
    found = torch_package()
    if found is None:
        sys.exit(f"accelerate-cpp: the package torch must be installed beside this one: pip install torch (version {known})")
    directory, minor = found
    if minor not in supported():
        sys.exit(f"accelerate-cpp: torch must be {known}, but {directory} is {minor}")
    return directory, HERE / f"torch-{minor}"


def run(prefix, arguments):
    tool = prefix / "bin/accelerate-cpp"
    os.execv(tool, [str(tool), *arguments])


def demo(arguments):
    torch, prefix = matching_prefix()
    # The programs find a torch package beside this one by themselves.
    if torch.parent != HERE.parent:
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [str(torch / "lib"), os.environ.get("LD_LIBRARY_PATH")]))
    directory = tempfile.mkdtemp(prefix="accelerate-cpp-demo-")
    run(prefix, [
        "launch", "--num_processes", "2", str(prefix / "libexec/accelerate/digits"),
        "--data", str(HERE / "examples/digits/data/digits.csv.gz"), "--project_dir", directory, *arguments])


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["cmake-prefix"]:
        print(matching_prefix()[1])
    elif arguments[:1] == ["demo"]:
        demo(arguments[1:])
    else:
        found = torch_package()
        minor = found[1] if found and found[1] in supported() else supported()[-1]
        run(HERE / f"torch-{minor}", arguments)
