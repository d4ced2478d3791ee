#!/usr/bin/env bash
# big_model.sh BIG_MODEL: checks that the tokens are the same whether or not the model fits in memory, and that weights are
# written once.
set -euo pipefail
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
flags=(--parameters 0.002 --width 128 --tokens 5)
"$program" "${flags[@]}" --memory 1GB >all.txt
grep -q 'read 0 bytes' all.txt || { cat all.txt; echo "all weights fit, and some were fetched"; exit 1; }
written=$(stat -c %Y weights/model.safetensors.index.json)
"$program" "${flags[@]}" --memory 3MB >some.txt
[ "$(stat -c %Y weights/model.safetensors.index.json)" = "$written" ] || { echo "the weights were written again"; exit 1; }
grep -q disk some.txt || { cat some.txt; echo "nothing is on the disk"; exit 1; }
[ "$(grep ^tokens: all.txt)" = "$(grep ^tokens: some.txt)" ] || { echo "the tokens differ"; exit 1; }
if "$program" "${flags[@]}" --memory 1KB >few.txt 2>&1; then echo "1 KB was enough"; exit 1; fi
grep -q 'two blocks' few.txt || { cat few.txt; echo "no clear error"; exit 1; }
echo "all as expected"
