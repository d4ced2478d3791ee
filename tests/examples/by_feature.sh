#!/usr/bin/env bash
# by_feature.sh TOOL PROGRAM EXAMPLE: the example learns on one rank and on two.
set -euo pipefail
tool=$1 program=$2 example=$3
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
for ranks in 1 2; do
  output=$("$tool" launch --num_processes "$ranks" "$program" "$example")
  loss=$(sed -nE 's/^(\[0\] )?loss ([0-9.]+)$/\2/p' <<<"$output")
  echo "$ranks ranks: loss $loss"
  awk -v l="$loss" 'BEGIN { exit !(l != "" && l < 0.05) }' || { echo "it did not learn: $output"; exit 1; }
done
echo "all as expected"
