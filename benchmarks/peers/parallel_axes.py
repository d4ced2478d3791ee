"""Steps of PyTorch's own tensor and context parallelism on 2 and 4 CPU ranks over Gloo, with the model of
benchmarks/parallel_axes.cpp: parallelize_module for its linear layers, and a sequence divided as context_parallel does."""
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, TIME, BATCH, LAYERS, STEPS = 512, 8, 256, 4, 4, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        # Separate layers, because PyTorch's plans split queries, keys and values one by one.
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm1(x)
        heads = [f(h).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        y = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return y + self.down(F.gelu(self.up(self.norm2(y))))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def context_over_gathered_keys(net, mesh):
    """Does what programs do because context_parallel has no attention for the CPU: gathers the keys and values of all
    ranks, as its all-gather rotation does, and uses the causal mask of the rank's positions."""
    from torch.distributed.nn.functional import all_gather
    rank, size = mesh.get_local_rank(), mesh.size()
    length = TIME // size
    mask = torch.arange(TIME)[None] <= (torch.arange(length) + rank * length)[:, None]
    plain = F.scaled_dot_product_attention

    def attention(q, k, v, is_causal):
        k, v = (torch.cat(all_gather(t.contiguous(), group=mesh.get_group()), 2) for t in (k, v))
        return plain(q, k, v, attn_mask=mask)

    F.scaled_dot_product_attention = attention
    return lambda x: net(x[:, rank * length:(rank + 1) * length])


def divide(axis, net, size):
    """Returns the model's forward, divided along `axis`."""
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (size,))
    if axis == "tensor":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        plan = {"*." + name: ColwiseParallel() for name in ("q", "k", "v", "up")}
        plan |= {"*." + name: RowwiseParallel() for name in ("out", "down")}
        parallelize_module(net, mesh, plan)
        return net
    return context_over_gathered_keys(nn.parallel.DistributedDataParallel(net), mesh)


def steps(rank, axis, size, port, results):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(*[Block() for _ in range(LAYERS)])
    forward = divide(axis, net, size)
    sgd = torch.optim.SGD(net.parameters(), 1e-3)
    times = []
    for step in range(STEPS):
        x = torch.randn(BATCH, TIME, WIDTH)
        torch.distributed.barrier()
        start = time.perf_counter()
        sgd.zero_grad()
        forward(x).pow(2).mean().backward()
        sgd.step()
        if step > 1:
            times.append((time.perf_counter() - start) * 1e3)
    if rank == 0:
        results.put(statistics.median(times))
    torch.distributed.destroy_process_group()


def main():
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    context = mp.get_context("spawn")
    for size in (2, 4):
        for axis in ("tensor", "context"):
            times = []
            for _ in range(repeats):
                results = context.SimpleQueue()
                mp.spawn(steps, (axis, size, free_port(), results), nprocs=size)
                times.append(results.get())
            print(json.dumps({"case": "parallel_axes", "metric": f"python_{axis}_step_ms_{size}", "unit": "ms",
                              "value": round(statistics.median(times), 1), "runs": repeats}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
