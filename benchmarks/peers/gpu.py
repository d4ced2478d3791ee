#!/usr/bin/env python3
"""Measures the forwards from host memory and from disk of `make bench CASE=gpu` with Python's Accelerate: cpu_offload() and
load_checkpoint_and_dispatch() of the same model of 16 blocks (2.1 GB) on a CUDA device; from disk with the files in the page cache
(warm) and without (cold).

usage: python gpu.py [DIRECTORY ON THE DISK TO MEASURE]
"""
import os
import shutil
import sys
import tempfile

import torch
from accelerate import cpu_offload, init_empty_weights, load_checkpoint_and_dispatch
from offloaded_model import Net, forget, milliseconds, report
from safetensors.torch import save_file

WIDTH, BLOCKS = 4096, 16


def forward_ms(net, x, before=lambda: None):
    def forward():
        net(x)
        torch.cuda.synchronize()

    return milliseconds(forward, before, num_warm_ups=1)


def main():
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    figures = {}
    net = Net(WIDTH, BLOCKS)
    cpu_offload(net, execution_device=0)
    for rows in (64, 1024, 4096):
        figures[f"cpu_to_device_ms_{rows}_rows"] = forward_ms(net, torch.randn(rows, WIDTH, device="cuda:0"))
    del net
    directory = tempfile.mkdtemp(prefix="offload-", dir=sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        x = torch.randn(64, WIDTH, device="cuda:0")
        save_file(Net(WIDTH, BLOCKS).state_dict(), os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
        with init_empty_weights():
            net = Net(WIDTH, BLOCKS)
        net = load_checkpoint_and_dispatch(net, os.path.join(directory, "model.safetensors"), device_map=net.blocks_on_disk(0),
                                           offload_folder=os.path.join(directory, "offload"))
        figures["disk_to_device_ms_warm"] = forward_ms(net, x)
        figures["disk_to_device_ms_cold"] = forward_ms(net, x, lambda: forget(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report("gpu", figures)


if __name__ == "__main__":
    main()
