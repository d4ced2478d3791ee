#!/usr/bin/env python3
"""Measures the forwards from disk of `make bench CASE=offload` with Python's Accelerate: load_checkpoint_and_dispatch() of the same
model of 24 blocks, its forward with the file in the page cache (warm) and without (cold), and the forward of the model in memory.

usage: python offload.py [DIRECTORY ON THE DISK TO MEASURE]
"""
import os
import shutil
import sys
import tempfile
import time

import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from offloaded_model import Net, forget, milliseconds, report
from safetensors.torch import save_file

WIDTH, BLOCKS = 2048, 24


def main():
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    directory = tempfile.mkdtemp(prefix="offload-", dir=sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        x = torch.randn(8, WIDTH)
        net = Net(WIDTH, BLOCKS)
        wanted = net(x)
        figures = {"resident_forward_ms": milliseconds(lambda: net(x))}
        save_file(net.state_dict(), os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
        del net
        with init_empty_weights():
            net = Net(WIDTH, BLOCKS)
        start = time.perf_counter()
        net = load_checkpoint_and_dispatch(net, os.path.join(directory, "model.safetensors"), device_map=net.blocks_on_disk("cpu"),
                                           offload_folder=os.path.join(directory, "offload"))
        figures["load_ms"] = (time.perf_counter() - start) * 1e3
        torch.testing.assert_close(net(x), wanted)
        figures["disk_forward_ms_warm"] = milliseconds(lambda: net(x))
        figures["disk_forward_ms_cold"] = milliseconds(lambda: net(x), lambda: forget(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report("offload", figures)


if __name__ == "__main__":
    main()
