#!/usr/bin/env bash
# complete.sh TOOL PROGRAM EXAMPLE: runs a complete example on one process and on two, as examples/complete/README.md says,
# and checks what it ends with, that it resumes, and that its files are there.
set -euo pipefail
tool=$1 program=$2 example=$3
root=$(cd "$(dirname "$0")/../.." && pwd)
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"

fail() { echo "$1"; cat ./*.output; exit 1; }
# on RANKS OUTPUT ARGUMENT...: runs the example and keeps its lines without rank prefixes.
on() {
  local ranks=$1 output=$2.output
  shift 2
  "$tool" launch --num_processes "$ranks" "$program" "$example" "$@" >raw.output || fail "$example $* failed"
  sed -E 's/^\[[0-9]+\] //' raw.output >"$output"
}
# value OUTPUT EXPRESSION: prints the first group of the last line that matches.
value() { sed -nE "s/^$2\$/\\1/p" "$1.output" | tail -n 1; }
# is_true CONDITION: one of awk.
is_true() { awk "BEGIN { exit !($1) }" || fail "not true: $1"; }
has_weights() { [ -s "$1/model.safetensors" ] || fail "no weights in $1"; }
# resumes OUTPUT RUN NUMBER ARGUMENT...: removes the last checkpoint of a run on one rank, resumes it, and expects the lines that
# followed in the first run.
resumes() {
  local output=$1 run=$2 number=$3
  shift 3
  rm -r "$run/checkpoints/checkpoint_$number"
  on 1 resumed "$@" --resume
  grep -qx "resuming in epoch $number" resumed.output || fail "it did not resume"
  sed 1d resumed.output >rest.output
  tail -n "$(wc -l <rest.output)" "$output.output" | diff - rest.output || fail "the resumed run is another"
}

case $example in
image_classification)
  python3 "$root/examples/complete/make_data.py" images shapes
  on 1 one --data shapes --project_dir one
  on 2 two --data shapes --project_dir two --precision bf16
  for run in one two; do
    is_true "$(value $run '3 classes, best accuracy (.*)') > 0.85"
    has_weights $run/best
  done
  resumes one one 14 --data shapes --project_dir one
  python3 "$root/examples/complete/make_data.py" images few 4
  on 1 resnet --data few --net resnet18 --epochs 1 --project_dir resnet
  on 1 again --data few --net resnet18 --epochs 1 --project_dir again --weights resnet/checkpoints/checkpoint_0
  ;;
time_series)
  python3 "$root/examples/complete/make_data.py" series power.csv
  for ranks in 1 2; do
    on $ranks $ranks --data power.csv --project_dir run_$ranks
    line='error on unseen days: ([0-9.]+), of yesterday.s values ([0-9.]+), of the last ([0-9.]+)'
    error=$(value $ranks "$line")
    baseline=$(sed -nE "s/^$line\$/\\2/p" $ranks.output)
    is_true "0 < $error && $error < 0.6 * $baseline"
    has_weights run_$ranks/best
  done
  resumes 1 run_1 9 --data power.csv --project_dir run_1
  ;;
ppo)
  # It fails by itself if the return does not rise.
  for ranks in 1 2; do
    on $ranks $ranks
    grep -qxE "updates (were replayed|ran plainly: .*)" $ranks.output || fail "it does not say how updates ran"
    is_true "$(value $ranks 'return of the best actions (.*)') > 150"
    has_weights ppo_run/policy
  done
  ;;
gan)
  for ranks in 1 2; do
    on $ranks $ranks --epochs 10 --project_dir run_$ranks
    line='losses [0-9.]+ and [0-9.]+, distance ([0-9.]+)'
    is_true "$(value $ranks "epoch 9: $line") < 0.35 * $(value $ranks "epoch 0: $line")"
    has_weights run_$ranks/generator
  done
  on 1 resumed --epochs 11 --project_dir run_1 --resume
  grep -qx "resuming in epoch 10" resumed.output || fail "it did not resume"
  is_true "$(value resumed "epoch 10: $line") < 0.35 * $(value 1 "epoch 0: $line")"
  ;;
distillation)
  on 1 1
  # The same teacher, with half of it on each process.
  on 2 2 --teacher distillation_run/teacher --project_dir two
  line='accuracy of the teacher ([0-9.]+), of the student ([0-9.]+), agreement ([0-9.]+)'
  for ranks in 1 2; do
    is_true "$(value $ranks "$line") > 0.95"
    sed -nE "s/^$line\$/\\2 \\3/p" $ranks.output >scores
    read -r student agreement <scores
    is_true "$student > 0.93 && $agreement > 0.93"
  done
  [ "$(value 1 "$line")" = "$(value 2 "$line")" ] || fail "it is another teacher"
  line='process 0 holds ([0-9]+) of ([0-9]+) elements of the teacher'
  all=$(sed -nE "s/^$line\$/\\2/p" 1.output)
  is_true "$(value 1 "$line") == $all && $(value 2 "$line") < 0.6 * $all"
  has_weights two/student
  ;;
adapters_on_quantized)
  on 1 base --pretrain "$root"/docs/guides/*.md --base base
  is_true "$(value base 'loss [0-9.]+ before, ([0-9.]+) after') < 0.7 * $(value base 'loss ([0-9.]+) before, [0-9.]+ after')"
  for case in "1 nf4" "2 int8"; do
    read -r ranks type <<<"$case"
    on "$ranks" "$ranks$type" --base base --text "$root"/include/accelerate/m*.h --type "$type" --output "$ranks$type" --steps 150
    line='loss of the base ([0-9.]+), with the adapter ([0-9.]+), loaded again ([0-9.]+)'
    sed -nE "s/^$line\$/\\1 \\2 \\3/p" "$ranks$type.output" >losses
    read -r before after again <losses
    is_true "$after < 0.9 * $before"
    [ "$after" = "$again" ] || fail "the file has another adapter"
    [ -s "$ranks$type/adapter_model.safetensors" ] || fail "no adapter"
  done
  is_true "$(value 1nf4 '([0-9]+) bytes in nf4.*') < $(value 2int8 '([0-9]+) bytes in int8.*')"
  ;;
*)
  fail "no check of $example"
  ;;
esac
echo "all as expected"
