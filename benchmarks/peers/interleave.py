"""Interleaved blocks, and one JSON line per figure, as in the C++ programs."""
import json
import statistics
import time


def interleave(case, metric, blocks, calls, peer, plain):
    def block(call):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls * 1e6

    block(plain), block(peer)
    ours, base = [], []
    for _ in range(blocks):
        base.append(block(plain))
        ours.append(block(peer))
    value, baseline = statistics.median(ours), statistics.median(base)
    print(json.dumps({"case": case, "metric": metric, "value": round(value, 3), "unit": "us",
                      "baseline": round(baseline, 3), "ratio": round(value / baseline, 4), "runs": blocks}))
