#!/usr/bin/env bash
# conan.sh SOURCE BUILD LIBTORCH CXX: packages the build with the Conan recipe, and builds its test package, in an empty
# Conan home. CONAN_CREATE=1 compiles everything again, as `conan create` does for users.
set -euo pipefail
source=$1 build=$2 libtorch=$3 cxx=$4
conan=${CONAN:-conan}
command -v "$conan" >/dev/null || { echo "skipped: no conan (pip install conan)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CONAN_HOME=$work/home CXX=$cxx
"$conan" profile detect >/dev/null 2>&1
settings=(-s compiler.cppstd=20 -s build_type=Release -c user.accelerate:libtorch="$libtorch")
recipe=$source/packaging/conan
if [ -n "${CONAN_CREATE:-}" ]; then
  "$conan" create "$recipe" "${settings[@]}" --test-folder=""
else
  "$conan" export-pkg "$recipe" "${settings[@]}" -c user.accelerate:build="$build" --output-folder="$work/export" --test-folder=""
fi
cp -r "$recipe/test_package" "$work/test_package"
version=$("$conan" inspect "$recipe" --format=json | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])')
"$conan" test "$work/test_package" "accelerate-cpp/$version" "${settings[@]}"
