#!/usr/bin/env python3
"""Steps of torchao's Float8Linear with emulation, as in step_over_fp32 of CASE=fp8; the baseline is the net in fp32. Needs a Python with torchao."""
import copy
import dataclasses

import torch
from interleave import interleave
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

WIDTH, LAYERS = 512, 4
torch.set_num_threads(1)
torch.manual_seed(1)
x = torch.randn(512, WIDTH)
plain = torch.nn.Sequential(*(layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())))


def step_of(net):
    sgd = torch.optim.SGD(net.parameters(), 1e-3)

    def step():
        sgd.zero_grad()
        net(x).square().mean().backward()
        sgd.step()

    return step


for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    net = convert_to_float8_training(copy.deepcopy(plain), config=config)
    interleave("fp8", f"torchao_step_over_fp32_{recipe}", 10, 2, step_of(net), step_of(copy.deepcopy(plain)))
