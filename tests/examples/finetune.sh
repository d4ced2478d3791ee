#!/usr/bin/env bash
# finetune.sh TOOL FINETUNE: checks that losses on any number of processes equal those of one process, also after resuming on
# another number, and that the saved weights are those that were evaluated. finetune_model.tar.xz was made with torch 2.11.0
# and transformers 5.24.0 in examples/finetune:
#   python make_model.py model --width 16 && python export.py model --max_length 64
#   tar --sort=name --owner=0 --group=0 --mtime=2026-01-01 -cJf ../../tests/examples/finetune_model.tar.xz model
set -euo pipefail
tool=$1 finetune=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
tar -xf "$here/finetune_model.tar.xz"
cat "$here"/../../docs/concepts/*.md >train.txt
head -c 5000 "$here/../../docs/quick_start.md" >other.txt
flags=(--train train.txt --evaluate other.txt --block_size 32 --batch_size 12 --learning_rate 1e-2 --num_warmup_steps 2)
losses() { sed -E 's/^\[[0-9]+\] //' | grep -E '^(step|evaluation)'; }

# same A B TOLERANCE: checks that both have the same lines, with losses within the tolerance.
same() {
  [ "$(wc -l <"$1")" -eq "$(wc -l <"$2")" ] || { echo "$1 and $2 have different lines"; cat "$1" "$2"; exit 1; }
  paste -d ' ' "$1" "$2" | awk -v t="$3" '{ d = $(NF / 2) - $NF; if (d < 0) d = -d; if (d > t) { print "differs: " $0; exit 1 } }'
}

"$finetune" --model model "${flags[@]}" --steps 10 --project_dir one --output tuned | losses >one.txt
awk 'NR == 1 { first = $3 } END { exit !($3 < first - 0.5) }' one.txt || { echo "it does not learn"; cat one.txt; exit 1; }
[ "$(find tuned -name '*.json' | wc -l)" -ge 1 ] || { echo "no config.json in the output"; exit 1; }
# The output is a model's directory.
"$finetune" --model tuned "${flags[@]}" --steps 0 --project_dir again | losses | head -n 1 >again.txt
tail -n 1 one.txt | cmp - again.txt

"$tool" launch --num_processes 3 "$finetune" --model model "${flags[@]}" --steps 10 --project_dir run --checkpoint_every 6 --checkpointing |
  losses >three.txt
same one.txt three.txt 0.0005
"$tool" launch --num_processes 2 "$finetune" --model model "${flags[@]}" --steps 10 --project_dir run --resume --output resumed |
  losses >two.txt
same <(tail -n 5 one.txt) <(tail -n 5 two.txt) 0.0005
[ "$(wc -l <two.txt)" -eq 6 ] || { echo "it did not resume after step 6"; cat two.txt; exit 1; }
cmp -s <(tail -n 1 one.txt) <(head -n 1 two.txt) && { echo "the resumed run began with the final weights"; exit 1; }

"$finetune" --model model "${flags[@]}" --steps 6 --project_dir lora_one --lora 4 --output adapter | losses >lora_one.txt
"$tool" launch --num_processes 2 "$finetune" --model model "${flags[@]}" --steps 6 --project_dir lora_two --lora 4 | losses >lora_two.txt
same lora_one.txt lora_two.txt 0.0005
same <(head -n 1 lora_one.txt) <(head -n 1 one.txt) 0
cmp -s <(head -n 1 lora_one.txt) <(tail -n 1 lora_one.txt) && { echo "adapters do not learn"; exit 1; }
[ "$(cd adapter && ls)" = $'adapter_config.json\nadapter_model.safetensors' ] || { echo "not an adapter alone:"; ls adapter; exit 1; }
echo "all as expected"
