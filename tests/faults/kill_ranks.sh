#!/usr/bin/env bash
# kill_ranks.sh RANK_PROGRAM TRIALS LAUNCH...: two ranks under a launcher that restarts once; a random rank is killed at a random
# moment, and the group must restart and succeed. With TRIALS 100, for example:
# kill_ranks.sh build/bin/restart_rank 100 build/bin/accelerate-cpp launch --quiet --num_processes 2 --max_restarts 1
# kill_ranks.sh build/bin/restart_rank 100 torchrun --no-python --nproc_per_node 2 --max_restarts 1
set -euo pipefail
rank=$1 trials=$2
shift 2
RANDOM=${SEED:-1}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
back=0 lost=0 hung=0
for trial in $(seq "$trials"); do
  rm -rf "${directory:?}/run"
  mkdir "$directory/run"
  setsid timeout --signal KILL 60 "$@" "$rank" "$directory/run" >"$directory/out" 2>&1 &
  launcher=$!
  # Waits for a random moment in the startup or the steps of the first attempt.
  victim=$((RANDOM % 2))
  until [ -s "$directory/run/pid_$victim" ] || ! kill -0 $launcher 2>/dev/null; do :; done
  sleep "0.$(printf %03d $((RANDOM % 500)))"
  kill -KILL "$(cat "$directory/run/pid_$victim")" 2>/dev/null || true
  code=0
  wait $launcher || code=$?
  case $code in
    0) back=$((back + 1)) ;;
    137) hung=$((hung + 1)); pkill -KILL -f "$directory/run" || true ;;
    *) lost=$((lost + 1)); echo "trial $trial: exit code $code"; tail -5 "$directory/out" ;;
  esac
done
echo "{\"trials\": $trials, \"came_back\": $back, \"ended\": $lost, \"hung\": $hung}"
[ "$back" -eq "$trials" ]
