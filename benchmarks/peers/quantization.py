#!/usr/bin/env python3
"""Products with bitsandbytes on the CPU; the baseline is the fp32 layer. Needs a Python with bitsandbytes."""
import bitsandbytes as bnb
import torch
from interleave import interleave

SIZE = 4096
torch.manual_seed(1)
torch.set_grad_enabled(False)
plain = torch.nn.Linear(SIZE, SIZE, bias=False)
plain.weight.copy_(torch.randn(SIZE, SIZE) * 0.02)


def quantised(layer):
    layer.load_state_dict(plain.state_dict())
    return layer.to("cpu").eval()


layers = {
    "nf4": quantised(bnb.nn.Linear4bit(SIZE, SIZE, bias=False, compute_dtype=torch.float32, quant_type="nf4",
                                       compress_statistics=False)),
    "int8": quantised(bnb.nn.Linear8bitLt(SIZE, SIZE, bias=False, has_fp16_weights=False, threshold=6.0)),
}
for name, layer in layers.items():
    for batch in (1, 2, 4, 8):
        x = torch.randn(batch, SIZE)
        interleave("quantization", f"bitsandbytes_{name}_over_fp32_batch_{batch}", 10, 1,
                   lambda: layer(x), lambda: plain(x))
