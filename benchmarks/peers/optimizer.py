#!/usr/bin/env python3
"""The Python original of CASE=optimizer: fused optimizers through Accelerate; the baseline is PyTorch's default."""
import torch
from accelerate import Accelerator
from interleave import interleave

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)


def parameters():
    torch.manual_seed(1)
    all_of_them = []
    for _ in range(12):
        for n in (64, 128, 256, 64):
            all_of_them += [torch.randn(n, n, requires_grad=True), torch.randn(n, requires_grad=True)]
    for parameter in all_of_them:
        parameter.grad = torch.randn_like(parameter)
    return all_of_them


def compare(metric, kind, **options):
    peer = accelerator.prepare(kind(parameters(), lr=1e-3, fused=True, **options))
    plain = kind(parameters(), lr=1e-3, **options)
    interleave("optimizer", metric, 60, 10, peer.step, plain.step)


compare("python_adamw_us", torch.optim.AdamW)
compare("python_adam_us", torch.optim.Adam)
compare("python_sgd_momentum_us", torch.optim.SGD, momentum=0.9)
compare("python_adagrad_us", torch.optim.Adagrad)
