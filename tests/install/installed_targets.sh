#!/usr/bin/env bash
# installed_targets.sh BUILD NINJA: checks that the target install_programs builds every installed
# library and program, and no test, example or benchmark.
set -euo pipefail
build=$1 ninja=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The programs themselves are inputs of the target only, not of its dependencies.
{ "$ninja" -C "$build" -t inputs install_programs; "$ninja" -C "$build" -t query install_programs | tr -d ' '; } >"$work/inputs"
cmake --install "$build" --prefix "$work/prefix" >/dev/null

wrong=0
while read -r file; do
  name=$(basename "$file")
  if ! grep -Eq "(^|/)$name\$" "$work/inputs"; then
    echo "installed, but install_programs does not build it: $name"
    wrong=1
  fi
done < <(find "$work/prefix/bin" "$work/prefix/libexec" "$work/prefix/lib" -type f \( -perm -u+x -o -name '*.so*' \))

if grep -E '(^|/)(tests|examples|benchmarks)/' "$work/inputs"; then
  echo "install_programs builds what is not installed"
  wrong=1
fi
[ "$(find "$work/prefix" -name accelerateConfig.cmake | wc -l)" = 1 ] || { echo "no accelerateConfig.cmake"; wrong=1; }
exit $wrong
