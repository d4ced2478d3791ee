#!/usr/bin/env python3
"""The Python original of CASE=clip; the baseline is PyTorch's own function."""
import torch
from accelerate import Accelerator
from interleave import interleave

torch.set_num_threads(1)
torch.manual_seed(1)
net = torch.nn.ModuleList(torch.nn.Linear(n, n) for _ in range(12) for n in (64, 128, 256, 64))
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(net)
parameters = list(net.parameters())
for parameter in parameters:
    parameter.grad = torch.randn_like(parameter)
interleave("clip", "python_norm_us", 100, 20, lambda: accelerator.clip_grad_norm_(model.parameters(), 1.0),
           lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0))
interleave("clip", "python_value_us", 100, 20, lambda: accelerator.clip_grad_value_(model.parameters(), 0.5),
           lambda: torch.nn.utils.clip_grad_value_(parameters, 0.5))
