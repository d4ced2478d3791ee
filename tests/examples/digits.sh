#!/usr/bin/env bash
# digits.sh TOOL DIGITS: checks that the example learns, reports its results, and is reproducible.
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
# The closing line names the run, whose journal holds everything that was logged.
run=$(sed -E 's/.*\(accelerate-cpp watch (.*)\).*/\1/' <<<"$line")
[ -s "$run/journal" ] || { echo "the closing line does not say how to watch the run"; exit 1; }
"$tool" runs export "$run" | awk -F , '{ count[$2]++; value[$2] = $5; step[$2] = $3 } END {
  exit !(count["accuracy"] == 30 && count["loss"] == step["accuracy"] && count["learning_rate"] == count["loss"] &&
         value["learning_rate"] == 0.003 && value["accuracy"] >= 0.97 && value["loss"] > 0) }' ||
  { echo "the journal is incomplete"; "$tool" runs show "$run"; exit 1; }

first=$("$tool" launch --num_processes 2 "$digits" --epochs 2 --seed 5 | closing | digest)
again=$("$tool" launch --num_processes 2 "$digits" --epochs 2 --seed 5 | closing | digest)
other=$("$tool" launch --num_processes 2 "$digits" --epochs 2 --seed 6 | closing | digest)
[ "$first" = "$again" ] || { echo "the same seed gave $first and $again"; exit 1; }
[ "$first" != "$other" ] || { echo "another seed gave the same"; exit 1; }
"$digits" --epochs 1 --precision bf16 --gradient_accumulation_steps 2 | closing
OMP_NUM_THREADS=1 "$digits" --epochs 1 --precision fp16 | closing
"$digits" --epochs 1 --precision fp8 | closing
"$digits" --epochs 1 --precision fp4 2>err && { echo "fp4 was not refused"; exit 1; }
grep -q "fp4" err
echo "all as expected"
