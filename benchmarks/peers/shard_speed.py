"""A step of two CPU ranks in the Python original, with the model of benchmarks/shard_speed.cpp: replicated, fully sharded
by PyTorch's fully_shard (FSDP2), and by Accelerate when asked for FSDP2 on CPU ranks."""
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.multiprocessing as mp

WIDTH, LAYERS, BATCH, STEPS, REPEATS = 1024, 16, 64, 12, 5


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def steps(rank, way, port, results):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ACCELERATE_USE_CPU="1", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    net = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    x = torch.randn(BATCH, WIDTH)
    backward = lambda loss: loss.backward()
    if way == "python_accelerate_fsdp2":
        from accelerate import Accelerator, FullyShardedDataParallelPlugin
        os.environ["ACCELERATE_USE_FSDP"] = "1"
        accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
        adamw = torch.optim.AdamW(net.parameters(), 1e-4)
        net, adamw = accelerator.prepare(net, adamw)
        backward = accelerator.backward
    else:
        torch.distributed.init_process_group("gloo")
        if way == "python_fully_shard":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard
            mesh = init_device_mesh("cpu", (2,))
            for layer in net:
                fully_shard(layer, mesh=mesh)
            fully_shard(net, mesh=mesh)
        else:
            net = torch.nn.parallel.DistributedDataParallel(net)
        adamw = torch.optim.AdamW(net.parameters(), 1e-4)
    times = []
    for step in range(STEPS):
        start = time.perf_counter()
        adamw.zero_grad()
        backward(net(x).pow(2).mean())
        adamw.step()
        if step > 1:
            times.append((time.perf_counter() - start) * 1e3)
    split = any(type(p).__name__ == "DTensor" for p in net.parameters())
    if rank == 0:
        results.put((statistics.median(times), split))
    torch.distributed.destroy_process_group()


def main():
    ways = ["python_replicate", "python_fully_shard", "python_accelerate_fsdp2"]
    times = {way: [] for way in ways}
    split = {}
    context = mp.get_context("spawn")
    for _ in range(REPEATS):
        for way in ways:
            results = context.SimpleQueue()
            mp.spawn(steps, (way, free_port(), results), nprocs=2)
            value, split[way] = results.get()
            times[way].append(value)
    baseline = statistics.median(times[ways[0]])
    for way in ways:
        value = statistics.median(times[way])
        print(json.dumps({"case": "shard_speed", "metric": way + "_step_ms", "value": round(value, 1), "unit": "ms",
                          "baseline": round(baseline, 1), "ratio": round(value / baseline, 2), "runs": REPEATS,
                          "parameters_are_split": split[way]}))


if __name__ == "__main__":
    sys.exit(main())
