#!/usr/bin/env bash
# by_feature.sh TOOL PROGRAM EXAMPLE: checks that the example learns on one rank and on two, and that its output shows the
# effect of its feature.
set -euo pipefail
tool=$1 program=$2 example=$3
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

fail() { echo "$1"; cat "$directory"/output* 2>/dev/null; exit 1; }
# on RANKS OUTPUT EXAMPLE ARGUMENT...: runs an example in the directory of OUTPUT and keeps its lines without rank prefixes.
on() {
  local ranks=$1 output=$2
  shift 2
  mkdir -p "$directory/at_$output"
  (cd "$directory/at_$output" && "$tool" launch --num_processes "$ranks" "$program" "$@") >"$directory/raw_$output" || fail "$* failed"
  sed -E 's/^\[[0-9]+\] //' "$directory/raw_$output" >"$directory/output_$output"
}
# says OUTPUT LINE [TIMES]: checks that the output has the line, an extended regular expression, TIMES times (default 1).
says() {
  local times
  times=$(grep -cxE -- "$2" "$directory/output_$1" || true)
  [ "$times" -eq "${3:-1}" ] || fail "on $1: $times lines, not ${3:-1}: $2"
}
# value OUTPUT EXPRESSION: prints the first group of the last line that matches.
value() { sed -nE "s/^$2\$/\\1/p" "$directory/output_$1" | tail -n 1; }
loss() { value "$1" 'loss ([0-9.]+)'; }
is_true() { awk "BEGIN { exit !($1) }" || fail "not true: $1"; }
# differ OUTPUT OTHER LEAST MOST: checks that their losses differ by LEAST to MOST.
differ() {
  is_true "($(loss "$1") - $(loss "$2"))^2 >= ($3)^2 && ($(loss "$1") - $(loss "$2"))^2 <= ($4)^2"
}
# are_shards OUTPUT EXPRESSION: checks that two ranks hold non-empty shards of the net's 129 elements.
are_shards() {
  sed -nE "s/^$2\$/\1/p" "$directory/output_$1" |
    awk '{ sum += $1; if ($1 == 0) empty = 1 } END { exit !(NR == 2 && sum == 129 && !empty) }' || fail "no shards of 129 elements"
}

# Each example also ends with an error by itself if its feature did not act.
grep -q 'expect(' "$(dirname "$0")/../../examples/by_feature/$example.cpp" || fail "$example does not check that its feature acts"

for ranks in 1 2; do
  on $ranks $ranks "$example"
  echo "$ranks ranks: loss $(loss $ranks)"
  is_true "\"$(loss $ranks)\" != \"\" && 0$(loss $ranks) < 0.05"
done

case $example in
adapters)
  for ranks in 1 2; do
    says $ranks "593 elements are trained, the base is offloaded"
    says $ranks "fetched more than once per step: yes"
  done
  [ "$(find "$directory/at_2" -name index.json | wc -l)" = 2 ] || fail "the bases have no folders"
  ;;
plain_loop)
  # 25 batches of 20 samples, distributed over the ranks.
  says 1 "500 optimizer steps"
  says 2 "260 optimizer steps"
  ;;
gradient_accumulation)
  # Windows of 4 batches, the last one shorter: 7 for 25 batches, 4 for 13.
  says 1 "280 optimizer steps"
  says 2 "160 optimizer steps"
  ;;
captured_step)
  says 1 "the steps (were replayed|ran plainly: LibTorch has no graphs for the device cpu)"
  says 2 "the steps ran plainly: .*"
  for ranks in 1 2; do says $ranks "microseconds per step: plain [0-9]+, captured [0-9]+"; done
  ;;
checkpointing)
  for ranks in 1 2; do
    on $ranks resumed_$ranks checkpointing 12
    cp "$directory/output_resumed_$ranks" "$directory/output_before_$ranks"
    on $ranks resumed_$ranks checkpointing
    says resumed_$ranks "resuming in epoch 12"
    grep -vh resuming "$directory"/output_{before,resumed}_$ranks | sed '/^loss/{$!d}' >"$directory/both"
    diff "$directory/output_$ranks" "$directory/both" || fail "the resumed run is another on $ranks ranks"
    found=$(ls "$directory/at_resumed_$ranks/checkpointing_run/checkpoints" | tr '\n' ' ')
    [ "$found" = "checkpoint_18 checkpoint_19 " ] || fail "kept $found"
  done
  ;;
comm_hook)
  says 1 "gradients have the precision of fp32"
  says 2 "gradients have the precision of bf16"
  on 1 plain_1 plain_loop
  on 2 plain_2 plain_loop
  differ 1 plain_1 0 0
  differ 2 plain_2 0.0000001 0.01
  ;;
distillation)
  says 1 "rank 0: holds 129 elements of the student, 129 of the teacher"
  says 2 "rank [01]: holds 129 elements of the student, [0-9]+ of the teacher" 2
  are_shards 2 "rank [01]: holds 129 elements of the student, ([0-9]+) of the teacher"
  ;;
early_stopping)
  epoch=$(value 2 "rank 0: stopped after epoch ([0-9]+)")
  says 1 "rank 0: stopped after epoch [0-9]+"
  says 2 "rank [01]: stopped after epoch $epoch" 2
  is_true "$(grep -c "saw a loss" "$directory/output_2") > 0"
  ;;
elastic)
  says 2 "generation 1 begins"
  mkdir "$directory/at_died"
  (cd "$directory/at_died" && "$tool" launch --num_processes 2 --max_restarts 1 --redundancy neighbour "$program" elastic die) \
    >"$directory/raw_died" 2>"$directory/output_messages" || fail "elastic die failed"
  sed -E 's/^\[[0-9]+\] //' "$directory/raw_died" >"$directory/output_died"
  # A state that is still being kept makes the next one be skipped, so how old the newest is depends on the machine.
  says died "generation 2 goes on in epoch [0-9]+"
  differ 2 died 0 0
  grep -q "takes the place of process" "$directory/output_messages" || fail "no rank was replaced"
  ;;
fp8)
  for ranks in 1 2; do
    for recipe in tensorwise rowwise rowwise_with_gw_hp delayed mxfp8 msamp_O1 msamp_O2; do says $ranks "by $recipe"; done
    says $ranks "middle: float8" 7
    [ "$(grep -c '^loss 0\.0[0-4]' "$directory/output_$ranks")" = 7 ] || fail "a recipe did not learn"
  done
  ;;
fused_loss)
  for ranks in 1 2; do says $ranks "all logits at once: the same loss"; done
  ;;
fused_optimizer)
  on 1 plain_1 plain_loop
  on 2 plain_2 plain_loop
  differ 1 plain_1 0 0.00001
  differ 2 plain_2 0 0.00001
  ;;
gradient_clipping)
  for ranks in 1 2; do
    line='clipped ([0-9]+) gradients; the largest norm that remained is [0-9.]+'
    is_true "$(value $ranks "$line") > 0"
    line='clipped [0-9]+ gradients; the largest norm that remained is ([0-9.]+)'
    is_true "$(value $ranks "$line") > 0.999 && $(value $ranks "$line") < 1.00001"
  done
  ;;
item_weights)
  # The same 50 samples per step, on one rank and on two.
  on 1 whole item_weights 50 1
  on 2 divided item_weights 25 1
  differ 1 whole 0 0.00001
  differ divided whole 0 0.00001
  ;;
join_uneven_inputs)
  says 1 "rank 0: had 500 batches"
  says 2 "rank 0: had 260 batches"
  says 2 "rank 1: had 240 batches"
  says 2 "all ranks have the same weights"
  ;;
loader_workers)
  says 1 "continued with the last 22 of 25 batches"
  says 2 "continued with the last 10 of 13 batches"
  says 1 "25 batches, 2 workers: .*"
  ;;
local_sgd)
  # A rank takes 13 steps per epoch and averages every 8 steps, which coincides with the end of two epochs.
  says 2 "ranks had the same weights after 2 of 20 epochs"
  says 2 "ranks have the same weights in the end"
  ;;
lomo)
  says 1 "0 gradients are left in memory"
  says 2 "0 gradients are left in memory"
  ;;
master_weights)
  says 1 "the model computes in BFloat16, the optimizer steps on Float"
  says 2 "the model computes in BFloat16, the optimizer steps on Float"
  ;;
memory)
  for ranks in 1 2; do
    [ "$(grep batches "$directory/output_$ranks" | tr '\n' ' ')" = "batches of 128 batches of 64 " ] || fail "another batch size was found"
  done
  ;;
mixed_precision)
  says 1 "weights in Float, computed in BFloat16"
  says 2 "weights in Float, computed in BFloat16"
  ;;
metrics)
  # 500 samples: rounds of 128 on two ranks; the last round repeats some.
  for ranks in 1 2; do
    says $ranks "500 samples: error [0-9.]+, signs [0-9.]+; by one process: error [0-9.]+, signs [0-9.]+"
    values=$(sed -nE 's/^500 samples: error ([0-9.]+), signs ([0-9.]+); by one process: error ([0-9.]+), signs ([0-9.]+)$/\1 \2 \3 \4/p' "$directory/output_$ranks")
    read -r error signs one_error one_signs <<<"$values"
    is_true "($error - $one_error)^2 < 1e-10 && $signs == $one_signs && $signs > 0.9"
    says $ranks "training loss [0-9.]+"
  done
  ;;
cross_validation)
  for ranks in 1 2; do says $ranks "500 samples judged, error below 0.05"; done
  ;;
multi_process_metrics)
  for ranks in 1 2; do
    says $ranks "epoch [0-9]+: [0-9]+ of 500 within 0.2" 20
    says $ranks "epoch 19: $(value $ranks "by one process: ([0-9]+) of 500") of 500 within 0.2"
  done
  ;;
packed_tokens)
  for ranks in 1 2; do
    says $ranks "rank [01]: [0-9]+ sequences in [0-9]+ rows" $ranks
    awk '/sequences in/ { sequences += $3; rows += $6 } END { exit !(sequences == 256 && rows < 128) }' "$directory/output_$ranks" || fail "sequences are lost or alone"
  done
  ;;
profiler)
  for ranks in 1 2; do
    # 20 x 2 x 32 and 20 x 32 x 1 multiply-adds in each of 3 steps.
    says $ranks "6 products, 11520 operations"
    traces=$directory/at_$ranks/profiler_traces
    [ "$(ls "$traces" | wc -l)" = $ranks ] || fail "not a trace per rank"
    "$tool" trace merge "$traces" -o "$directory/all_$ranks.json" >"$directory/merged_$ranks" 2>&1 || fail "$(cat "$directory/merged_$ranks")"
    grep -q "events of $ranks ranks merged" "$directory/merged_$ranks" || fail "$(cat "$directory/merged_$ranks")"
    for rank in $(seq 0 $((ranks - 1))); do
      [ "$(grep -c "\"name\":\"ProfilerStep#[234]\",\"pid\":$rank," "$directory/all_$ranks.json")" = 3 ] || fail "rank $rank has not three steps in the merged trace"
    done
  done
  says 1 "475 steps of each of 1 ranks"
  says 2 "247 steps of each of 2 ranks"
  ;;
schedule)
  # A tenth of the steps warms up, whatever the number of ranks.
  says 1 "learning rate 0.020000 after 50 steps, 0.000000 in the end"
  says 2 "learning rate 0.020000 after 26 steps, 0.000000 in the end"
  ;;
sharding)
  says 1 "rank 0: holds 129 elements"
  are_shards 2 "rank [01]: holds ([0-9]+) elements"
  on 2 plain plain_loop
  differ 2 plain 0 0.00001
  ;;
stream)
  says 1 "rank 0: read 10000 samples, trained on 10000"
  says 2 "rank 0: read 10000 samples, trained on 5000"
  says 2 "rank 1: read 0 samples, trained on 5000"
  ;;
csv)
  for ranks in 1 2; do
    says $ranks "500 rows, 5 missing values"
    for side in left right; do
      is_true "$(value $ranks "error on held-out rows, $side: ([0-9.]+)") < 0.1"
    done
  done
  ;;
tracking)
  # figures DIRECTORY: prints the figures in the run's journal, without times.
  figures() { "$tool" runs export "$directory/$1/tracking_run/fit" | cut -d , -f 2,3,5; }
  for ranks in 1 2; do
    on $ranks interrupted_$ranks tracking 12
    mv "$directory/at_interrupted_$ranks" "$directory/at_resumed_$ranks"
    on $ranks resumed_$ranks tracking
    figures at_$ranks >"$directory/figures"
    steps=$((ranks == 1 ? 20 * 25 : 20 * 13))
    [ "$(grep '^loss,' "$directory/figures" | cut -d , -f 2)" = "$(seq $steps)" ] || fail "not each of $steps steps once"
    figures at_resumed_$ranks | diff "$directory/figures" - || fail "the resumed run logged other figures on $ranks ranks"
    # Trackers also get repeated steps.
    [ "$(wc -l <"$directory/at_$ranks/losses.txt")" = $steps ] || fail "the program's own tracker lacks steps"
    [ "$(wc -l <"$directory/at_resumed_$ranks/losses.txt")" = $((steps + 5)) ] || fail "the program's own tracker lacks repeated steps"
    [ "$(ls "$directory/at_$ranks/tracking_run/by_feature"/events.out.tfevents.* | wc -l)" -ge 1 ] || fail "TensorBoard got nothing"
    "$tool" runs export --format json "$directory/at_resumed_$ranks/tracking_run/fit" | tr -d ' \n' >"$directory/run.json"
    for event in image\",\"name\":\"wantedandfound#1 histogram\",\"name\":\"weights figure\",\"name\":\"losses table\",\"name\":\"corners config\",; do
      grep -qF "$event" "$directory/run.json" || fail "the journal has no $event"
    done
  done
  ;;
*)
  fail "no check shows that $example does what it is about"
  ;;
esac
echo "all as expected"
