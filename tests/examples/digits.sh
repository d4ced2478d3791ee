#!/usr/bin/env bash
# digits.sh TOOL DIGITS: the example learns, reports its results, and is reproducible.
set -euo pipefail
tool=$1 digits=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

closing() { tr '\r' '\n' | grep -E '[0-9]+ process(es)?, [0-9]+ samples/s, results in .* accuracy=0\.[0-9]{4} digest=[0-9a-f]{16}$'; }
accuracy() { sed -E 's/.*accuracy=([0-9.]+).*/\1/'; }
digest() { sed -E 's/.*digest=//'; }

line=$("$tool" launch --num_processes 2 "$digits" --project_dir out | closing)
echo "$line"
awk -v a="$(accuracy <<<"$line")" 'BEGIN { exit !(a >= 0.97) }' || { echo "it did not learn"; exit 1; }
[ "$(wc -l <out/metrics.csv)" -eq 31 ] || { echo "metrics.csv is incomplete"; exit 1; }

first=$("$tool" launch --num_processes 2 "$digits" --epochs 2 --seed 5 | closing | digest)
again=$("$tool" launch --num_processes 2 "$digits" --epochs 2 --seed 5 | closing | digest)
other=$("$tool" launch --num_processes 2 "$digits" --epochs 2 --seed 6 | closing | digest)
[ "$first" = "$again" ] || { echo "the same seed gave $first and $again"; exit 1; }
[ "$first" != "$other" ] || { echo "another seed gave the same"; exit 1; }
"$digits" --epochs 1 --precision bf16 --gradient_accumulation_steps 2 | closing
OMP_NUM_THREADS=1 "$digits" --epochs 1 --precision fp16 | closing
"$digits" --epochs 1 --precision fp8 2>err && { echo "fp8 was not refused"; exit 1; }
grep -q "fp8" err
echo "all as expected"
