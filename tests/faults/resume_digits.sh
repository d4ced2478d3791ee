#!/usr/bin/env bash
# resume_digits.sh TOOL DIGITS RANKS TRIALS [FLAG...]: a training run that is repeatedly killed at random moments and resumed from its newest
# checkpoint ends with exactly the weights of an uninterrupted run. FLAGs are the launcher's; {} in them is a directory, which the
# runs leave empty.
set -euo pipefail
tool=$1 digits=$2 ranks=$3 trials=$4
RANDOM=${SEED:-1}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
mkdir files
flags=("${@:5}")
flags=("${flags[@]//\{\}/$directory/files}")
run() { # PROJECT: runs to the end, or until it is killed
  "$tool" launch --num_processes "$ranks" "${flags[@]}" "$digits" --epochs 3 --seed 3 --project_dir "$1" \
    --checkpoint_every 7 --total_limit 2 --resume latest
}
digest_in() { tr '\r' '\n' <"$1" | sed -nE 's/.*digest=([0-9a-f]{16}).*/\1/p'; }
run uninterrupted >uninterrupted.out
expected=$(digest_in uninterrupted.out)
[ -n "$expected" ] || { cat uninterrupted.out; exit 1; }
kills=0 wrong=0
for trial in $(seq "$trials"); do
  rm -rf broken
  while true; do
    # Runs in its own process group, so that all of it can be killed at once.
    setsid bash -c "$(declare -f run); $(declare -p flags); tool=$tool digits=$digits ranks=$ranks; run broken" >broken.out 2>broken.err &
    pid=$!
    # Startup takes about 300 ms, and so does training.
    sleep "0.$(printf %03d $((250 + RANDOM % 550)))"
    if kill -KILL -- "-$pid" 2>/dev/null; then
      wait "$pid" 2>/dev/null || true
      kills=$((kills + 1))
      # After every fourth kill the run may finish.
      [ $((kills % 4)) -eq 0 ] && { run broken >broken.out; break; }
    else
      wait "$pid" || { cat broken.err; exit 1; }
      break
    fi
  done
  found=$(digest_in broken.out)
  [ "$found" = "$expected" ] || { wrong=$((wrong + 1)); echo "trial $trial: $found, not $expected"; tail -2 broken.out; }
done
echo "{\"ranks\": $ranks, \"trials\": $trials, \"kills\": $kills, \"other_digests\": $wrong}"
[ -z "$(ls -A files)" ] || { ls -lA files; exit 1; }
[ "$wrong" -eq 0 ] && echo "all as expected"
