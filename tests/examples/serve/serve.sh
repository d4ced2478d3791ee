#!/usr/bin/env bash
# serve.sh SERVE DECODER: starts the program, asks it for tokens, and ends it.
set -euo pipefail
serve=$1 decoder=$2

exec 3< <(exec "$serve" "$decoder" --port 0)
process=$!
read -r line <&3
port=${line##*:}
[[ $line == "listening on http://127.0.0.1:$port" ]] || { echo "it says: $line"; exit 1; }

# post BODY: prints the body of the answer.
post() {
  exec 4<>"/dev/tcp/127.0.0.1/$port"
  printf 'POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s' "${#1}" "$1" >&4
  sed '1,/^\r$/d' <&4
}
# Those that Python generated.
expected='{"finish_reason":"stop","tokens":[60,46,55,30,63]}'
found=$(post '{"tokens": [5, 6, 7], "stop_tokens": [9]}')
[[ $found == "$expected" ]] || { echo "it answers $found"; exit 1; }
found=$(post '{"tokens": [500]}')
[[ $found == '{"error":"tokens must be from 0 to 63, but one is 500"}' ]] || { echo "it answers $found"; exit 1; }

kill -TERM "$process"
wait "$process" || { echo "it ends with $?"; exit 1; }
"$serve" "$decoder" --load 12 --connections 3 --max_new_tokens 4 >load.txt || { cat load.txt; echo "no load test"; exit 1; }
for batch in 1 '[0-9]+'; do
  grep -qxE "in batches of $batch: [0-9.]+ requests/s, [0-9]+ tokens/s, latency in ms: p50 [0-9.]+, p90 [0-9.]+, p99 [0-9.]+" load.txt ||
    { cat load.txt; echo "no figures"; exit 1; }
done
[ "$(wc -l <load.txt)" = 2 ] || { cat load.txt; echo "other lines"; exit 1; }
rm load.txt
if "$serve" "$decoder" --load 2 --max_new_tokens 1000000 2>error.txt; then echo "it does not say that requests are refused"; exit 1; fi
grep -q 'a request was refused' error.txt || { cat error.txt; exit 1; }
if "$serve" /nowhere.pt2 2>error.txt; then echo "it runs without a program"; exit 1; fi
grep -q '^serve: .*/nowhere.pt2' error.txt || { cat error.txt; exit 1; }
rm error.txt
echo "all as expected"
