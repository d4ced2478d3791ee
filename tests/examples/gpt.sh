#!/usr/bin/env bash
# gpt.sh TOOL GPT: checks that losses on any number of ranks equal those of one process, also after resuming on another
# number.
set -euo pipefail
tool=$1 gpt=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
flags=(--steps 12 --batch_size 12 --layers 2 --width 32 --block_size 32)

# same A B TOLERANCE: checks that both have the same steps, with losses within the tolerance.
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

# Ranks that share layers (tensor), sequences (context), state (shard) or nothing (replicate).
divided() { # divided NAME RANKS FLAG...
  "$tool" launch --num_processes "$2" "$gpt" "${flags[@]}" --project_dir "$1" "${@:3}" | steps >"$1.txt"
}
divided tensor 2 --tensor 2
divided context 2 --context 2
divided grid 4 --tensor 2 --context 2 --checkpoint_every 6
divided data 4 --replicate 2 --shard 2
divided odd 3 --context 3
divided stages 2 --pipeline 2 --micro_batches 4
divided staged_grid 4 --pipeline 2 --tensor 2 --schedule ZBH1
divided staged_context 4 --pipeline 2 --context 2
for case in tensor context grid data odd stages staged_grid staged_context; do same one.txt $case.txt 0.0005; done
rm -r grid/checkpoints/checkpoint_1
cp -r grid tall
cp -r grid wide
divided grid 2 --shard 2 --resume latest
divided tall 2 --tensor 2 --resume latest
divided wide 3 --context 1 --replicate 1 --resume latest
for case in grid tall wide; do same tail.txt $case.txt 0.0005; done

# On a disk: the same digits on one rank, also where memory goes on, and close to it on two.
mkdir disk
"$tool" launch --num_processes 1 --offload_directory_in_memory "$gpt" "${flags[@]}" --offload "nvme:$PWD/disk" --project_dir disk1 \
  --checkpoint_every 6 | steps >disk1.txt
same one.txt disk1.txt 0
rm -r disk1/checkpoints/checkpoint_1
"$gpt" "${flags[@]}" --project_dir disk1 --resume latest | steps >from_disk.txt
same tail.txt from_disk.txt 0
"$tool" launch --num_processes 2 --offload_directory_in_memory "$gpt" "${flags[@]}" --offload "nvme:$PWD/disk" --project_dir disk2 \
  | steps >disk2.txt
same ranks2.txt disk2.txt 0
"$gpt" "${flags[@]}" --offload cpu --project_dir host | steps >host.txt
same one.txt host.txt 0
[ -z "$(ls disk)" ] || { ls disk; echo "files are left on the disk"; exit 1; }
[ ! -e disk1/initial_weights ] || { echo "initial weights are left"; exit 1; }

# Experts on one rank, on several, and resumed on another number of ranks.
"$gpt" "${flags[@]}" --experts 5 --project_dir expert_one >expert_one.log
steps <expert_one.log >expert_one.txt
grep -q "blocks.1.experts: the busiest expert has" expert_one.log || { echo "no load of experts"; exit 1; }
divided expert_data 2 --experts 5 --replicate 2 --expert 2
divided expert_grid 4 --experts 5 --shard 2 --expert 2 --tensor 2 --checkpoint_every 6
divided expert_odd 3 --experts 5 --shard 3 --expert 3 --checkpointing
for case in data grid odd; do same expert_one.txt expert_$case.txt 0.0005; done
# With pipeline stages, balance losses are means over micro-batches.
divided expert_stages 4 --experts 5 --pipeline 2 --replicate 2 --expert 2
same expert_one.txt expert_stages.txt 0.01
rm -r expert_grid/checkpoints/checkpoint_1
divided expert_grid 2 --experts 5 --replicate 2 --expert 2 --resume latest
tail -n 6 expert_one.txt >expert_tail.txt
same expert_tail.txt expert_grid.txt 0.0005

# The learning rate is 0 in the first step of a warm-up and follows its schedule, also in a resumed run.
"$gpt" "${flags[@]}" --learning_rate 0 --project_dir still | steps >still.txt
for type in cosine linear; do
  "$gpt" "${flags[@]}" --lr_scheduler_type $type --num_warmup_steps 2 --project_dir $type | steps >$type.txt
  head -n 2 still.txt | cmp - <(head -n 2 $type.txt)
  if head -n 4 still.txt | cmp -s - <(head -n 4 $type.txt); then echo "$type: the rate does not rise"; exit 1; fi
done
if cmp -s cosine.txt linear.txt; then echo "cosine and linear rates are alike"; exit 1; fi
divided scheduled 3 --lr_scheduler_type cosine --num_warmup_steps 2 --checkpoint_every 6
same cosine.txt scheduled.txt 0.0005
rm -r scheduled/checkpoints/checkpoint_1
divided scheduled 2 --lr_scheduler_type cosine --num_warmup_steps 2 --resume latest
tail -n 6 cosine.txt >cosine_tail.txt
same cosine_tail.txt scheduled.txt 0.0005

# refuses RANKS PHRASE FLAG...: checks that the run fails with an error that contains the phrase.
refuses() {
  if "$tool" launch --num_processes "$1" "$gpt" --project_dir refused "${@:3}" >refused.txt 2>&1; then
    echo "not refused: ${*:3}"; exit 1
  fi
  grep -qF -- "$2" refused.txt || { echo "no \"$2\" in:"; cat refused.txt; exit 1; }
}
refuses 2 "[parallel] tensor (4) = 4 ranks, but the launcher started 2" --tensor 4 --shard 1
refuses 2 "[parallel] expert is 3, but the experts are divided among the ranks that read different data" --experts 4 --expert 3
refuses 1 "--offload must be cpu or nvme:DIRECTORY, but is tape" --offload tape
refuses 1 "--offload must be cpu, or not be given, with --pipeline" --offload nvme:/nvme --pipeline 2
refuses 2 "--block_size is 3, but --context 2 needs at least 4" --context 2 --block_size 3
echo "all as expected"
