#!/usr/bin/env bash
# machines_netns.sh TOOL RANK_PROGRAM: two network namespaces play two machines: ranks meet over the wire, and when it is cut both
# launchers end with a message. Needs root and iproute2; else it is skipped (77).
set -uo pipefail
tool=$1 rank=$2
id=$$
one=acc-$id-a two=acc-$id-b
ip netns add "$one" 2>/dev/null || { echo "cannot make network namespaces"; exit 77; }
out=$(mktemp -d)
clean() {
  for each in "$one" "$two"; do
    ip netns pids "$each" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
    ip netns del "$each" 2>/dev/null
  done
  rm -rf "$out"
}
trap clean EXIT
ip netns add "$two" && ip link add "a$id" type veth peer name "b$id" || exit 77
ip link set "a$id" netns "$one" && ip link set "b$id" netns "$two"
ip -n "$one" addr add 10.77.0.1/24 dev "a$id"
ip -n "$two" addr add 10.77.0.2/24 dev "b$id"
for each in "$one" "$two"; do ip -n "$each" link set lo up; done
ip -n "$one" link set "a$id" up
ip -n "$two" link set "b$id" up
# Both machines; the exit codes are left in $first and $second.
both() {
  local flags=(launch --num_machines 2 --num_processes 4 --main_process_ip 10.77.0.1 --main_process_port 29611)
  ip netns exec "$two" timeout -k 2 80 "$tool" "${flags[@]}" --machine_rank 1 "$@" >"$out/1" 2>&1 &
  local pid=$!
  ip netns exec "$one" timeout -k 2 80 "$tool" "${flags[@]}" --machine_rank 0 "$@" >"$out/0" 2>&1
  first=$?
  wait $pid
  second=$?
}
fail() {
  echo "$1 (exit codes $first, $second)"
  tail -5 "$out/0" "$out/1"
  exit 1
}
both --check "$rank" clean
[ $first -eq 0 ] && [ $second -eq 0 ] || fail "ranks did not meet"
grep -q "machine 1 (b$id 10.77.0.2) to machine 0" "$out/0" || fail "no measurement"
(
  until grep -q up "$out/0" "$out/1" 2>/dev/null; do sleep 0.1; done
  ip -n "$one" link set "a$id" down
) &
both bash -c 'echo up; exec sleep 1000'
[ $first -ne 0 ] && [ $first -lt 124 ] && [ $second -ne 0 ] && [ $second -lt 124 ] || fail "a cut line was not noticed"
grep -q "launcher is gone" "$out/0" && grep -q "is gone" "$out/1" || fail "no message"
echo "both as expected"
