#!/usr/bin/env python3
"""A training step of DeepSpeed's ZeRO-3 on one CPU rank, with parameters, gradients and AdamW's state on a disk: the model, batch and
buffers of CASE=nvme (benchmarks/disk_training.cpp). Prints the median of whole steps: forward, backward and step, until all is written.

usage: deepspeed_on_disk.py MILLIONS_OF_PARAMETERS DIRECTORY_ON_THE_DISK

Needs deepspeed, libaio's headers, ninja and a C++ compiler: DeepSpeed compiles its I/O and its CPU Adam in the first run.
"""
import json
import os
import statistics
import sys
import tempfile
import time

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.update(RANK="0", LOCAL_RANK="0", LOCAL_SIZE="1", WORLD_SIZE="1")
import deepspeed  # noqa: E402  (reads the environment)
import torch  # noqa: E402

WIDTH = 2048
UNIT = WIDTH * WIDTH
WARM_UP_STEPS = 2  # the first one records the order in which parameters are used
STEPS = 5


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + 0.1 * self.linear(x)


def settings(directory):
    """Buffers are those of ours, and a group of the step is one unit. By default, all parameters would stay in memory for reuse. With more
    than one live unit, DeepSpeed 0.19.8 may read a parameter into two buffers ("already assigned swap buffer"), which ends the run.
    """
    disk = {"device": "nvme", "nvme_path": directory, "buffer_count": 16, "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 1e-2}},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {**disk, "pipeline_read": True, "pipeline_write": True},
            "offload_param": {**disk, "buffer_size": UNIT, "max_in_cpu": 0},
            "sub_group_size": UNIT,
            "reduce_bucket_size": UNIT,
            "stage3_prefetch_bucket_size": UNIT,
            "stage3_max_live_parameters": UNIT,
            "stage3_max_reuse_distance": 0,
            "stage3_param_persistence_threshold": 0,
        },
        "aio": {"block_size": 8 << 20, "queue_depth": 32, "intra_op_parallelism": 2},
    }


def seconds_of_step(engine, x):
    start = time.perf_counter()
    engine.backward(engine(x).pow(2).mean())
    engine.step()  # returns when the last group is written
    return time.perf_counter() - start


def main():
    num_layers = max(int(float(sys.argv[1]) * 1e6) // UNIT, 4)
    with tempfile.TemporaryDirectory(prefix="deepspeed-", dir=sys.argv[2]) as directory:
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, init_method=f"file://{directory}/ranks", rank=0, world_size=1)
        with deepspeed.zero.Init(config_dict_or_path=settings(directory)):
            net = torch.nn.Sequential(*[Layer() for _ in range(num_layers)])
        engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=settings(directory))
        x = torch.randn(1, WIDTH)
        seconds = [seconds_of_step(engine, x) for _ in range(WARM_UP_STEPS + STEPS)][WARM_UP_STEPS:]
        print(json.dumps({"case": "nvme", "metric": "deepspeed_whole_step_ms", "value": round(1e3 * statistics.median(seconds), 3),
                          "unit": "ms", "baseline": 0, "ratio": 0, "runs": STEPS}), flush=True)
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
