"""The model whose weights lie elsewhere in `make bench CASE=offload` and `CASE=gpu`, and what its measurements share."""
import json
import os
import statistics
import time

import torch

ROUNDS = 5


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, width)
        self.down = torch.nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, width, num_blocks):
        super().__init__()
        self.names = [f"block{i}" for i in range(num_blocks)]
        for name in self.names:
            self.add_module(name, Block(width))
        # Accelerate refuses a map that contains only "disk".
        self.tail = torch.nn.Linear(1, 1)

    def forward(self, x):
        for name in self.names:
            x = getattr(self, name)(x)
        return x

    def blocks_on_disk(self, place_of_rest):
        """Returns a device map."""
        return dict.fromkeys(self.names, "disk") | {"tail": place_of_rest}


def forget(directory):
    """Evicts a directory's files from the page cache, including files that were offloaded there."""
    for folder, _, names in os.walk(directory):
        for name in names:
            file = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def milliseconds(work, before=lambda: None, num_warm_ups=0):
    times = []
    for i in range(num_warm_ups + ROUNDS):
        before()
        start = time.perf_counter()
        work()
        if i >= num_warm_ups:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def report(case, figures):
    for metric, value in figures.items():
        print(json.dumps({"case": case, "peer": "accelerate", "metric": metric, "value": round(value, 2), "unit": "ms", "runs": ROUNDS}))
