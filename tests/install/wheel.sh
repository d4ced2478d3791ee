#!/usr/bin/env bash
# wheel.sh SOURCE BUILD LIBTORCH: makes the wheel twice, installs it into a fresh virtual environment beside LibTorch, and
# uses what the wheel promises.
set -euo pipefail
source=$1 build=$2 libtorch=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$source/tools/package" wheel "$build" --output "$work/first" >/dev/null
"$source/tools/package" wheel "$build" --output "$work/second" >/dev/null
cmp "$work"/first/*.whl "$work"/second/*.whl

python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps "$work"/first/*.whl
site=$("$work/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
tool=$work/env/bin/accelerate-cpp
cd "$work"
export TMPDIR=$work  # where the demo writes

"$tool" --version
# Without torch, the error says what to install.
"$tool" cmake-prefix 2>message && exit 1
grep -q "pip install torch" message

# The directories of an installed torch, with those of the libraries that it needs.
ln -s "$libtorch" "$site/torch"
[ ! -e "$libtorch/../nvidia" ] || ln -s "$libtorch/../nvidia" "$site/nvidia"
prefix=$("$tool" cmake-prefix)
cmake -S "$source/tests/install/project" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" >log || { cat log; exit 1; }
grep "LibTorch .*$site/torch" log
"$tool" test --num_processes 2 2>&1 | tail -n 1
"$tool" demo --epochs 3 | tail -n 1

# What the library loads beside LibTorch is in the wheel, or on every Linux. ldd reports only what it misses.
if find "$prefix" -type f -name '*.so*' -exec ldd {} + | grep "not found"; then exit 1; fi
! "$work/env/bin/python" -m zipfile -l "$work"/first/*.whl | grep -E 'libtorch|libc10'
# The same by auditwheel, where it is installed.
if command -v auditwheel >/dev/null; then
  auditwheel show --json "$work"/first/*.whl | python3 -c '
import json, sys
libraries = sorted(json.load(sys.stdin)["external_libs"])
print("auditwheel: outside the wheel are", libraries)
sys.exit(libraries != ["libc10.so", "libtorch_cpu.so"])'
fi
echo "the wheel works"
