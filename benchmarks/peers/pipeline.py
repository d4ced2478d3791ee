"""Steps of torch.distributed.pipelining on 2 and 4 CPU ranks over Gloo, with the model and schedule of
benchmarks/pipeline.cpp."""
import json
import os
import socket
import statistics
import time

import torch
import torch.multiprocessing as mp

WIDTH, LAYERS, ROWS, MICRO_BATCHES, STEPS = 512, 8, 256, 8, 21


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def train(rank, ranks, port, results):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    own = torch.nn.Sequential(*[
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(LAYERS // ranks)])
    stage = PipelineStage(own, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda y, _: y.square().mean())
    sgd = torch.optim.SGD(own.parameters(), 1e-3)
    x = torch.randn(ROWS, WIDTH)
    times = []
    for step in range(STEPS + 1):
        torch.distributed.barrier()
        start = time.perf_counter()
        sgd.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == ranks - 1:
            schedule.step(target=x)
        else:
            schedule.step()
        sgd.step()
        slowest = torch.tensor(time.perf_counter() - start)
        torch.distributed.all_reduce(slowest, torch.distributed.ReduceOp.MAX)
        if step > 0:
            times.append(slowest.item() * 1e3)
    if rank == 0:
        results.put(statistics.median(times))
    # A rank that exits early would abort the others.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    for ranks in (2, 4):
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(train, args=(ranks, free_port(), results), nprocs=ranks)
        value = results.get()
        print(json.dumps({"case": "pipeline", "metric": f"python_pipelining_step_{ranks}_ranks", "value": round(value, 3),
                          "unit": "ms", "baseline": 0, "ratio": 0, "runs": STEPS}))


if __name__ == "__main__":
    main()
