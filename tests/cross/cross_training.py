"""A training that goes on in the other language: 3 epochs in C++, 3 in Python's Accelerate, 3 in C++ again, against 9 in C++.

usage: python cross_training.py CROSS_TRAINING ACCELERATE_CPP
       python cross_training.py --train OPTIMIZER EPOCHS SAVE_TO [LOAD_FROM]     one process of the Python part

Ends with 1 if any loss differs by more than 1e-5, with 77 if accelerate, torch or numpy is missing.
"""
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy  # noqa: F401: Accelerate saves its random state
    import torch
    from accelerate import Accelerator
except ImportError as missing:
    print(f"skipped: this Python has no package {missing.name}")
    sys.exit(77)

OPTIMIZERS = ["AdamW", "Adam", "SGD", "Adagrad", "RMSprop"]


def wave(count, step):
    return torch.sin(torch.arange(count, dtype=torch.float64) * step).float()


def make_optimizer(name, parameters):
    options = {
        "AdamW": {"lr": 0.02},
        "Adam": {"lr": 0.02, "amsgrad": True},
        "SGD": {"lr": 0.05, "momentum": 0.9},
        "Adagrad": {"lr": 0.05},
        "RMSprop": {"lr": 0.01, "momentum": 0.5},
    }
    return getattr(torch.optim, name)(parameters, **options[name])


class Epoch:
    def __init__(self):
        self.value = 0

    def state_dict(self):
        return {"epoch": self.value}

    def load_state_dict(self, state):
        self.value = state["epoch"]


def train(optimizer_name, epochs, save_to, load_from=None):
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = make_optimizer(optimizer_name, net.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.8)
    dataset = torch.utils.data.TensorDataset(wave(24 * 4, 0.3).view(24, 4), wave(24, 1.1).view(24, 1))
    loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    model, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, loader)
    epoch = Epoch()
    accelerator.register_for_checkpointing(epoch)
    if load_from:
        accelerator.load_state(load_from)
        state = torch.get_rng_state()
        saved = torch.load(Path(load_from) / f"random_states_{accelerator.process_index}.pkl", weights_only=True)
        assert torch.equal(state, saved["torch_manual_seed"]), "the random states were not loaded"
    for epoch.value in range(epoch.value, epoch.value + epochs):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            mean = accelerator.gather(loss.detach().view(1)).mean().item()
            if accelerator.is_main_process:
                print(f"{mean:.9f}", flush=True)
    epoch.value += 1
    accelerator.save_state(save_to)
    accelerator.end_training()


def losses_of(text):
    # The launcher begins lines with "[rank] ".
    return [float(line.split()[-1]) for line in text.splitlines()]


def in_python(num_processes, arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(num_processes):
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        if num_processes > 1:
            environment |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_processes),
                "LOCAL_WORLD_SIZE": str(num_processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }
        ranks.append(
            subprocess.Popen([sys.executable, __file__, "--train", *arguments], env=environment, stdout=subprocess.PIPE, text=True)
        )
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("the Python part failed")
    return losses_of(outputs[0])


def main(program, tool):
    def in_cpp(num_processes, arguments):
        command = [program, *arguments]
        if num_processes > 1:
            command = [tool, "launch", "--cpu", "--quiet", "--num_processes", str(num_processes), *command]
        return losses_of(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    worst = 0.0
    for num_processes in (1, 2):
        for name in OPTIMIZERS:
            with tempfile.TemporaryDirectory() as directory:
                first, second, third = (str(Path(directory) / each) for each in ("first", "second", "third"))
                expected = in_cpp(num_processes, [name, "9", third])
                found = in_cpp(num_processes, [name, "3", first])
                found += in_python(num_processes, [name, "3", second, first])
                found += in_cpp(num_processes, [name, "3", third + "_again", second])
            if len(found) != len(expected):
                raise SystemExit(f"{name} on {num_processes}: {len(found)} losses, not {len(expected)}")
            difference = max(abs(a - b) for a, b in zip(found, expected))
            print(f"{name} on {num_processes}: {len(found)} losses, largest difference {difference:.1e}")
            worst = max(worst, difference)
    return 1 if worst > 1e-5 else 0


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    else:
        sys.exit(main(*sys.argv[1:3]))
