#!/usr/bin/env bash
# gpt.sh TOOL GPT: losses equal those of one process on any number of ranks, also after a resume on another number.
set -euo pipefail
tool=$1 gpt=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
flags=(--steps 12 --batch_size 12 --layers 2 --width 32 --block_size 32)

# same A B TOLERANCE: both have the same steps, with losses within the tolerance.
same() {
  [ "$(wc -l <"$1")" -eq "$(wc -l <"$2")" ] || { echo "$1 and $2 have different steps"; exit 1; }
  paste -d ' ' "$1" "$2" | awk -v t="$3" '{ d = $4 - $8; if (d < 0) d = -d; if ($2 != $6 || d > t) { print "differs: " $0; exit 1 } }'
}
steps() { sed -E 's/^\[[0-9]+\] //' | grep '^step '; }

"$gpt" "${flags[@]}" --project_dir one | steps >one.txt
awk 'NR == 1 { first = $4 } END { exit !($4 < first) }' one.txt || { echo "it does not learn"; exit 1; }
for ranks in 2 3; do
  "$tool" launch --num_processes $ranks "$gpt" "${flags[@]}" --project_dir "run$ranks" --checkpoint_every 6 | steps >"ranks$ranks.txt"
  same one.txt "ranks$ranks.txt" 0.0005
done
tail -n 6 one.txt >tail.txt
rm -r run3/checkpoints/checkpoint_1
"$tool" launch --num_processes 2 "$gpt" "${flags[@]}" --project_dir run3 --resume latest | steps >resumed.txt
same tail.txt resumed.txt 0.0005
"$tool" launch --num_processes 2 "$gpt" "${flags[@]}" --project_dir again --checkpointing | steps >again.txt
same ranks2.txt again.txt 0
"$tool" launch --num_processes 2 "$gpt" "${flags[@]}" --project_dir half --precision bf16 --checkpointing | steps >half.txt
same one.txt half.txt 0.05
echo "all as expected"
