#!/usr/bin/env bash
# machines_netns.sh TOOL RANK_PROGRAM ELASTIC_RANK: network namespaces simulate machines on one switch. Ranks meet on two and three of
# them: by static addresses, by a host file, under torchrun (if there is one; TORCHRUN names it), and over a slow line; when a line is
# cut, all launchers end with a message; a machine that vanishes comes back and gets its state from its neighbour; and machines join a
# running group, and are lost to it. Needs root and iproute2; otherwise it is skipped (77).
set -uo pipefail
# ACCELERATE_TEST_TIME_FACTOR multiplies all time limits, for builds with sanitizers.
time_factor=${ACCELERATE_TEST_TIME_FACTOR:-1}
tool=$1 rank=$2 elastic_rank=$3
id=$$
switch=acc-$id-s
machine() { echo "acc-$id-$1"; }
ip netns add "$switch" 2>/dev/null || { echo "cannot make network namespaces"; exit 77; }
out=$(mktemp -d)
clean() {
  for each in "$(machine 0)" "$(machine 1)" "$(machine 2)" "$switch"; do
    ip netns pids "$each" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
    ip netns del "$each" 2>/dev/null
  done
  rm -rf "$out"
}
trap clean EXIT
ip -n "$switch" link add bridge type bridge 2>/dev/null && ip -n "$switch" link set bridge up || exit 77
for i in 0 1 2; do
  ip netns add "$(machine $i)" && ip link add "n$i" netns "$(machine $i)" type veth peer name "port$i" netns "$switch" || exit 77
  ip -n "$switch" link set "port$i" master bridge up
  ip -n "$(machine $i)" addr add 10.77.0.$((i + 1))/24 dev "n$i"
  ip -n "$(machine $i)" link set lo up
  ip -n "$(machine $i)" link set "n$i" up
done

codes=()
# on_machines N WORD...: runs WORD... on machines 0 to N-1, with @ replaced; leaves the exit codes in $codes.
on_machines() {
  local count=$1 i
  local -a pids=()
  shift
  rm -f "$out"/[0-9]
  for ((i = 0; i < count; ++i)); do
    ip netns exec "$(machine $i)" timeout -k 2 $((80 * time_factor)) "${@//@/$i}" >"$out/$i" 2>&1 &
    pids+=($!)
  done
  codes=()
  for pid in "${pids[@]}"; do
    wait "$pid"
    codes+=($?)
  done
}
launch() {
  local count=$1
  shift
  on_machines "$count" "$tool" launch --num_machines "$count" --num_processes $((2 * count)) \
    --main_process_ip 10.77.0.1 --main_process_port 29611 --machine_rank @ "$@"
}
fail() {
  echo "$1 (exit codes ${codes[*]})"
  tail -n 6 "$out"/[0-9]
  exit 1
}
all_well() {
  local code
  for code in "${codes[@]}"; do [ "$code" -eq 0 ] || fail "$1"; done
}
measured() { grep -q "machine 2 (n2 10.77.0.3) to machine 0" "$out/0" || fail "the machines $1 did not see each other"; }
none_hung() {
  local code
  for code in "${codes[@]}"; do [ "$code" -ne 0 ] && [ "$code" -lt 124 ] || fail "$1"; done
}

for count in 2 3; do
  launch $count --check "$rank" clean
  all_well "ranks on $count machines did not meet"
  grep -q "machine 1 (n1 10.77.0.2) to machine 0" "$out/0" || fail "no measurement of $count machines"
done

# A scheduler's variables instead of flags.
SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=3 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NODELIST=10.77.0.1 \
  on_machines 3 env SLURM_NODEID=@ SLURM_PROCID=@ "$tool" launch --check "$rank" clean
all_well "launchers started by Slurm did not meet"
measured "started by Slurm"

mkdir "$out/bin"
# Reaches a machine by its address, as ssh would: ssh -o OPTION -- ADDRESS LINE.
cat >"$out/bin/ssh" <<SHIM
#!/bin/sh
number=\$((\${4##*.} - 1))
exec ip netns exec acc-$id-\$number sh -c "\$5"
SHIM
chmod +x "$out/bin/ssh"
printf '10.77.0.1 slots=1\n10.77.0.2 slots=1\n10.77.0.3 slots=1\n' >"$out/hosts"
PATH=$out/bin:$PATH on_machines 1 "$tool" launch --hostfile "$out/hosts" --check "$rank" clean
all_well "ranks of the host file did not meet"
measured "of the host file"

torchrun=${TORCHRUN:-$(command -v torchrun || true)}
if [ -n "$torchrun" ]; then
  on_machines 3 "$torchrun" --nnodes 3 --nproc-per-node 1 --node-rank @ --master-addr 10.77.0.1 --master-port 29622 \
    --no-python "$rank" clean
  all_well "ranks under torchrun did not meet"
else
  echo "torchrun: left out, there is none"
fi

# Eight million bits per second to and from the last machine.
if ip netns exec "$switch" tc qdisc add dev port2 root tbf rate 8mbit burst 16kb latency 400ms 2>/dev/null &&
  ip netns exec "$(machine 2)" tc qdisc add dev n2 root tbf rate 8mbit burst 16kb latency 400ms; then
  launch 3 --check "$rank" clean
  all_well "ranks over a slow line did not meet"
  slowest=$(sed -n 's/.*machine 2 .* \([0-9.]*\) MB\/s.*/\1/p' "$out/0" | sort -g | head -n 1)
  [ -n "$slowest" ] && [ "${slowest%.*}" -le 2 ] || fail "--check did not show the slow line: ${slowest:-nothing} MB/s"
  ip netns exec "$switch" tc qdisc del dev port2 root
  ip netns exec "$(machine 2)" tc qdisc del dev n2 root
else
  echo "slow line: left out, the kernel cannot"
fi

for count in 2 3; do
  rm -f "$out"/[0-9]
  (
    until grep -q up "$out/0" "$out/$((count - 1))" 2>/dev/null; do sleep 0.1; done
    ip -n "$switch" link set "port$((count - 1))" down
  ) &
  launch $count bash -c 'echo up; exec sleep 1000'
  none_hung "a cut line between $count machines was not noticed"
  for ((i = 0; i < count; ++i)); do grep -qE "is gone|was lost" "$out/$i" || fail "machine $i said nothing"; done
  ip -n "$switch" link set "port$((count - 1))" up
done

# The last machine vanishes with its memory, and comes back once the others have noticed.
run_elastic() {
  ip netns exec "$(machine "$1")" timeout -k 2 $((120 * time_factor)) "$tool" launch --num_machines 3 --num_processes 3 \
    --main_process_ip 10.77.0.1 --main_process_port 29633 --machine_rank "$1" --max_restarts 3 \
    --redundancy neighbour --redundancy_steps 3 "$elastic_rank" "$out/project" elastic 400 1 >"$out/$1$2" 2>&1 &
}
# await WORDS FILE
await() {
  local tries=0
  until grep -q "$1" "$out/$2"; do
    [ $((tries += 1)) -lt $((900 * time_factor)) ] || { codes=(); fail "no \"$1\""; }
    sleep 0.1
  done
}
rm -f "$out"/[0-9]
mkdir "$out/project"
pids=()
for i in 0 1 2; do run_elastic $i ""; pids+=($!); done
await "step 20" 0
# Machine 0 has its part of a state that is newer than all checkpoints. A stopped machine keeps the others from going on.
signal_last() { ip netns pids "$(machine 2)" | xargs -r kill "$1"; }
newest_checkpoint() {
  find "$out/project/checkpoints" -maxdepth 1 -name 'checkpoint_*' | sed 's/.*_//' | sort -n | tail -n 1
}
# Sets $checkpoint to the number of the checkpoint that would be saved after the copy.
has_copy() {
  local each newest
  newest=$(newest_checkpoint)
  for each in /dev/shm/accelerate-cpp-*-"$(pgrep -P "${pids[0]}" | head -n 1)"/*/copies/generation_*_state_*; do
    checkpoint=${each##*_before_checkpoint_}
    checkpoint=${checkpoint%%_state_*}
    [ -d "$each" ] && [ "$checkpoint" -gt "${newest:--1}" ] && return
  done
  return 1
}
tries=0
until signal_last -STOP && has_copy; do
  [ $((tries += 1)) -lt $((600 * time_factor)) ] || { codes=(); fail "no state in memory was copied"; }
  signal_last -CONT
  sleep 0.1
done
ip -n "$switch" link set port2 down
signal_last -KILL
await "machine 2, whose launcher is gone" 0
# The machine may have been stopped after writing its part of a checkpoint: then the others complete it, and it is newer than the copy.
newest=$(newest_checkpoint)
ip -n "$switch" link set port2 up
run_elastic 2 again
pids[2]=$!
codes=()
for pid in "${pids[@]}"; do
  wait "$pid"
  codes+=($?)
done
all_well "a machine that vanished did not come back"
[ "${newest:--1}" -ge "$checkpoint" ] || grep -q "its part came back to machine 2 from machine 0" "$out/0" || fail "the neighbour's memory was not used"
[ "$(awk '{ print $1 }' "$out/project/curve" | sort -nu | wc -l)" -eq 400 ] || fail "steps are missing"

# A group of two or three machines: the last one joins late, its line is cut, and it joins again. No checkpoints are saved, so the
# others go on from states in memory.
run_changing() {
  ip netns exec "$(machine "$1")" timeout -k 2 $((180 * time_factor)) "$tool" launch --num_machines 3 --num_processes 2:3 \
    --main_process_ip 10.77.0.1 --main_process_port 29644 --machine_rank "$1" \
    --redundancy neighbour --redundancy_steps 3 "$elastic_rank" "$out/changing" unsaved 20 4 >"$out/$1$2" 2>&1 &
}
rm -f "$out"/[0-9]*
mkdir "$out/changing"
run_changing 0 ""
pids=($!)
run_changing 1 ""
pids+=($!)
await "generation 1: [0-9]* [0-9]*$" 0
run_changing 2 ""
cut_off=$!
await "generation 2: [0-9]* [0-9]* [0-9]*$" 0
await "step 40" 0
ip -n "$switch" link set port2 down
await "generation 3: [0-9]* [0-9]*$" 0
wait "$cut_off"
codes=($?)
none_hung "the launcher of the machine that was cut off did not end"
ip -n "$switch" link set port2 up
run_changing 2 again
pids+=($!)
await "generation 4: [0-9]* [0-9]* [0-9]*$" 0
codes=()
for pid in "${pids[@]}"; do
  wait "$pid"
  codes+=($?)
done
all_well "a machine did not join a group that runs"
steps=$(awk '{ print $1 }' "$out/changing/curve" | sort -nu | wc -l)
[ "$steps" -eq "$(awk '{ print $1 }' "$out/changing/curve" | sort -n | tail -n 1)" ] || fail "steps are missing from a group that machines join"
# The last line of a step has its number, the loss and its samples: ten steps together have each sample once.
awk '{ line[$1] = $0 } END { for (step = 1; step in line; ++step) { count = split(line[step], words); for (i = 3; i <= count; ++i) print int((step - 1) / 10), words[i] } }' \
  "$out/changing/curve" | sort | uniq -d | grep -q . && fail "a sample was seen twice in an epoch"
echo "all as expected"
