#!/usr/bin/env python3
"""The Python original of CASE=precision; the baseline is the loop written by hand in PyTorch."""
import torch
from accelerate import Accelerator
from interleave import interleave

torch.set_num_threads(1)
torch.manual_seed(1)
x, y = torch.randn(64, 256), torch.randint(10, (64,))


def net():
    relu, linear = torch.nn.ReLU, torch.nn.Linear
    return torch.nn.Sequential(linear(256, 512), relu(), linear(512, 512), relu(), linear(512, 10))


plain = net()
plain_sgd = torch.optim.SGD(plain.parameters(), 1e-3)
accelerator = Accelerator(cpu=True, mixed_precision="bf16")
inner = net()
model, sgd = accelerator.prepare(inner, torch.optim.SGD(inner.parameters(), 1e-3))


def by_hand():
    plain_sgd.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        output = plain(x)
    torch.nn.functional.cross_entropy(output.float(), y).backward()
    plain_sgd.step()


def through_accelerate():
    sgd.zero_grad()
    accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
    sgd.step()


interleave("precision", "python_bf16_step_us", 60, 5, through_accelerate, by_hand)
