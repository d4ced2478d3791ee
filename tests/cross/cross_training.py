"""Continues trainings in the other language: compares 3 epochs in C++, 3 in Python's Accelerate and 3 in C++ again with 9 in C++, and the same
starting in Python. Runs on one rank and on two.

usage: python cross_training.py CROSS_TRAINING ACCELERATE_CPP [CASE...]
       python cross_training.py --train JOBS     one process of the Python part; the jobs are those of cross_training.cpp

Exits with 1 if any loss differs by more than 1e-5, with 77 if accelerate, torch or numpy is missing.
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
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.state import AcceleratorState, GradientState
except ImportError as missing:
    print(f"skipped: this Python has no package {missing.name}")
    sys.exit(77)

TOLERANCE = 1e-5
SCHEDULES = [
    "LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR", "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts", "OneCycleLR", "CyclicLR", "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler",
]
CASES = [
    "AdamW", "Adam", "SGD", "Adagrad", "RMSprop",
    *(f"SGD+{name}" for name in SCHEDULES),
    "AdamW+OneCycleLR", "AdamW+CyclicLR",
    *(f"{name}+groups" for name in ("AdamW", "Adam", "SGD", "Adagrad", "RMSprop")),
    "AdamW+bf16", "SGD+bf16", "AdamW+accumulate", "AdamW+dropout", "AdamW+dropout+bf16+accumulate+groups",
    "AdamW+seedable", "AdamW+generator", "AdamW+dropout+generator",
    "AdamW+named", "AdamW+named+groups", "AdamW+fused", "AdamW+foreach",
    "AdamW+native", "Adam+native+dropout+torch_files", "SGD+native+groups+OneCycleLR", "SGD+native+groups+CosineAnnealingWarmRestarts",
    "AdamW+torch_files",
    "AdamW+sharded", "AdamW+sharded+native+groups",
]
NUM_SAMPLES = 26
SEED = 7


def wave(count, step):
    return torch.sin(torch.arange(count, dtype=torch.float64) * step).float()


def make_net(words):
    # The gradient of a bias before a BatchNorm is only rounding error, which
    # Adam would turn into steps.
    layers = [torch.nn.Linear(4, 8, bias="dropout" not in words)]
    if "dropout" in words:
        layers.append(torch.nn.BatchNorm1d(8))
    layers.append(torch.nn.Tanh())
    if "dropout" in words:
        layers.append(torch.nn.Dropout(0.25))
    layers.append(torch.nn.Linear(8, 1))
    net = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(wave(parameter.numel(), 0.7).view(parameter.shape) / 2)
    return net


def make_optimizer(name, words, net):
    options = {
        "AdamW": {"lr": 0.02},
        "Adam": {"lr": 0.02, "amsgrad": True},
        "SGD": {"lr": 0.05, "momentum": 0.9},
        "Adagrad": {"lr": 0.05},
        "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    }[name]
    options |= {key: True for key in ("fused", "foreach") if key in words}
    parameters = list(net.named_parameters() if "named" in words else net.parameters())
    if "groups" in words:
        parameters = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": options["lr"] / 2}]
    return getattr(torch.optim, name)(parameters, **options)


def make_schedule(words, optimizer):
    from torch.optim import lr_scheduler as lr

    makers = {
        "LambdaLR": lambda: lr.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step)),
        "MultiplicativeLR": lambda: lr.MultiplicativeLR(optimizer, lambda step: 0.97),
        "StepLR": lambda: lr.StepLR(optimizer, step_size=10, gamma=0.8),
        "MultiStepLR": lambda: lr.MultiStepLR(optimizer, [5, 20], 0.5),
        "ConstantLR": lambda: lr.ConstantLR(optimizer, 0.5, 20),
        "LinearLR": lambda: lr.LinearLR(optimizer, 0.2, 1.0, 30),
        "ExponentialLR": lambda: lr.ExponentialLR(optimizer, 0.98),
        "PolynomialLR": lambda: lr.PolynomialLR(optimizer, 40, 2.0),
        "CosineAnnealingLR": lambda: lr.CosineAnnealingLR(optimizer, 20, 0.001),
        "CosineAnnealingWarmRestarts": lambda: lr.CosineAnnealingWarmRestarts(optimizer, 7, 2, 0.001),
        "OneCycleLR": lambda: lr.OneCycleLR(optimizer, 0.05, total_steps=80),
        "CyclicLR": lambda: lr.CyclicLR(optimizer, 0.005, 0.05, 8, 12, "triangular2"),
        "ReduceLROnPlateau": lambda: lr.ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
        "SequentialLR": lambda: lr.SequentialLR(
            optimizer,
            [lr.LinearLR(optimizer, 0.2, 1.0, 8), lr.CosineAnnealingLR(optimizer, 22, 0.001), lr.ExponentialLR(optimizer, 0.98)],
            [8, 30],
        ),
        "ChainedScheduler": lambda: lr.ChainedScheduler(
            [lr.ConstantLR(optimizer, 0.5, 20), lr.ExponentialLR(optimizer, 0.98)], optimizer
        ),
    }
    return makers[next((name for name in makers if name in words), "StepLR")]()


class Epoch:
    """A variable that C++ registers by name."""

    def __init__(self):
        self.value = 0

    def state_dict(self):
        return {"epoch": self.value}

    def load_state_dict(self, state):
        self.value = state["epoch"]


class Record:
    """An object with a value of every kind that checkpoints hold; all depend on the epoch."""

    def __init__(self):
        self.epoch = 0

    def state_dict(self):
        epoch = self.epoch
        return {
            "epoch": epoch,
            "flag": epoch % 2 == 1,
            "count": 2**40 + epoch,
            "negative": -epoch - 1,
            "ratio": 0.1 * epoch,
            "infinite": float("-inf"),
            "name": f"größe {epoch}",
            "whole": [epoch, -2],
            "real": [0.5 * epoch, 1e300],
            "no_items": [],
            "tensor": torch.arange(6).reshape(2, 3) * epoch,
            "scalar": torch.tensor(0.5 * epoch, dtype=torch.float64),
            "none": torch.empty(0, 3),
            "inner": {"low": torch.full((2,), epoch, dtype=torch.bfloat16), "deeper": {"epoch": epoch}},
            "list": [{"a": epoch}, {"a": -epoch}],
        }

    def load_state_dict(self, state):
        self.epoch = state["epoch"]
        assert are_equal(state, self.state_dict()), f"the record of this epoch has other values: {state}"


class GeneratorState:
    def __init__(self, generator):
        self.generator = generator

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


def are_equal(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(are_equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(are_equal, a, b))
    return a == b


def make_loader(words, generator, inputs, targets):
    dataset = torch.utils.data.TensorDataset(inputs, targets)
    # Each pass draws a number from the loader's generator, by default torch's;
    # C++ does not.
    options = {"batch_size": 4, "generator": torch.Generator()}
    if "generator" in words:
        options["sampler"] = torch.utils.data.RandomSampler(dataset, generator=generator)
    elif "seedable" in words:
        options["shuffle"] = True
    return torch.utils.data.DataLoader(dataset, **options)


def load(accelerator, optimizer, scheduler, directory):
    before = [set(group) for group in optimizer.param_groups]
    accelerator.load_state(directory)
    # Entries that nothing reads.
    unread = {"param_names"}
    if isinstance(scheduler.scheduler, torch.optim.lr_scheduler.CyclicLR):
        unread |= {"max_momentum", "base_momentum"}
    for group, keys in zip(optimizer.param_groups, before):
        lost = keys - set(group) - unread
        assert not lost, f"the optimizer's groups have lost {lost}"
    saved = torch.load(Path(directory) / f"random_states_{accelerator.process_index}.pkl", weights_only=False)
    assert torch.equal(torch.get_rng_state(), saved["torch_manual_seed"]), "the random states were not loaded"


def train(number, case, epochs, save_to, load_from=None):
    optimizer_name, *words = case.split("+")
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="bf16" if "bf16" in words else "no",
        gradient_accumulation_steps=2 if "accumulate" in words else 1,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler="seedable" in words, data_seed=SEED),
    )
    net = make_net(words)
    optimizer = make_optimizer(optimizer_name, words, net)
    scheduler = make_schedule(words, optimizer)
    inputs, targets = wave(NUM_SAMPLES * 4, 0.3).view(-1, 4), wave(NUM_SAMPLES, 1.1).view(-1, 1)
    generator = torch.Generator()
    model, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, make_loader(words, generator, inputs, targets))
    is_plateau = "ReduceLROnPlateau" in words
    epoch, record = Epoch(), Record()
    accelerator.register_for_checkpointing(epoch, record, GeneratorState(generator))
    torch.manual_seed(SEED + accelerator.process_index)
    generator.manual_seed(SEED)
    if load_from:
        load(accelerator, optimizer, scheduler, load_from)

    def report(loss):
        mean = accelerator.gather(loss.detach().view(1)).mean().item()
        if accelerator.is_main_process:
            print(f"{number} {mean:.9f}", flush=True)
        return mean

    last = epoch.value + int(epochs)
    while epoch.value < last:
        loader.set_epoch(epoch.value)
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                if not is_plateau:
                    scheduler.step()
                optimizer.zero_grad()
                mean = report(loss)
        if is_plateau:
            # Accelerate's own step() steps once per process, each time with the
            # same metric.
            scheduler.scheduler.step(mean)
        model.eval()
        with torch.no_grad():
            report(torch.nn.functional.mse_loss(model(inputs), targets))
        model.train()
        epoch.value += 1
    record.epoch = epoch.value
    accelerator.save_state(save_to, safe_serialization="torch_files" not in words)
    accelerator.wait_for_everyone()


def train_all(jobs):
    for line in Path(jobs).read_text().splitlines():
        train(*line.split())
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def losses_of(text):
    losses = {}
    for line in text.splitlines():
        # The launcher prefixes lines with "[rank] ".
        number, loss = line.split()[-2:]
        losses.setdefault(int(number), []).append(float(loss))
    return losses


class Python:
    name = "Python"

    def run(self, num_processes, jobs):
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
            command = [sys.executable, "-W", "ignore", __file__, "--train", jobs]
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        outputs = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise SystemExit("the Python part failed")
        return losses_of(outputs[0])


class Cpp:
    name = "C++"

    def __init__(self, program, tool):
        self.program, self.tool = program, tool

    def run(self, num_processes, jobs):
        command = [self.program, jobs]
        if num_processes > 1:
            command = [self.tool, "launch", "--cpu", "--quiet", "--num_processes", str(num_processes), *command]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if ran.returncode:
            raise SystemExit(f"the C++ part failed\n{ran.stderr}")
        for line in Path(jobs).read_text().splitlines():
            _, case, _, save_to = line.split()[:4]
            if "native" in case.split("+"):
                converted = save_to + "_converted"
                unsafe = ["--unsafe_serialization"] if "torch_files" in case.split("+") else []
                subprocess.run([self.tool, "checkpoint", "convert", save_to, converted, *unsafe], check=True, stdout=subprocess.DEVNULL)
                os.rename(save_to, save_to + "_native")
                os.rename(converted, save_to)
        return losses_of(ran.stdout)


def compare(first, second, num_processes, cases):
    """Compares 9 epochs of `first` with 3 of it, 3 of `second` and 3 of it, for each case; returns the losses of the 9 epochs and
    the largest difference."""
    with tempfile.TemporaryDirectory() as directory:

        def run(language, phase, epochs, load_from=None):
            jobs = Path(directory) / f"{phase}.jobs"
            lines = []
            for number, case in enumerate(cases):
                words = [number, case, epochs, Path(directory) / f"{phase}_{number}"]
                lines.append(" ".join(map(str, words + ([Path(directory) / f"{load_from}_{number}"] if load_from else []))))
            jobs.write_text("\n".join(lines) + "\n")
            return language.run(num_processes, str(jobs))

        expected = run(first, "all", 9)
        phases = [run(first, "first", 3), run(second, "second", 3, "first"), run(first, "third", 3, "second")]
    worst = 0.0
    for number, case in enumerate(cases):
        found = [loss for phase in phases for loss in phase[number]]
        if len(found) != len(expected[number]):
            raise SystemExit(f"{case}: {len(found)} losses, not {len(expected[number])}")
        differences = [abs(a - b) for a, b in zip(found, expected[number])]
        # Also false if a difference is NaN.
        is_good = all(difference <= TOLERANCE for difference in differences)
        note = "" if is_good else "   TOO LARGE"
        print(f"{num_processes} {first.name:6} {case:45} {len(found)} losses, largest difference {max(differences):.1e}{note}", flush=True)
        worst = max(worst, max(differences)) if is_good else float("inf")
    return expected, worst


def main(program, tool, cases):
    cpp, python = Cpp(program, tool), Python()
    worst = 0.0
    for num_processes in (1, 2):
        chosen = [case for case in cases or CASES if num_processes > 1 or "sharded" not in case]
        in_cpp, difference = compare(cpp, python, num_processes, chosen)
        worst = max(worst, difference)
        in_python, difference = compare(python, cpp, num_processes, chosen)
        worst = max(worst, difference)
        for number, case in enumerate(chosen):
            difference = max(abs(a - b) for a, b in zip(in_cpp[number], in_python[number]))
            print(f"{num_processes} both   {case:45} 9 epochs in either language differ by {difference:.1e}")
    return 1 if worst > TOLERANCE else 0


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train_all(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
