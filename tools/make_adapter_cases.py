#!/usr/bin/env python3
"""Makes the cases of tests/adapters: adapters of Python's PEFT, and what it computes with them.

    python tools/make_adapter_cases.py OUT

Needs torch, transformers and peft. OUT/mixed.safetensors has the weights of the hand-written model; llama and gpt2 are the
programs of make_exported_programs.py. Every case CASE has
* CASE/adapter_config.json, CASE/adapter_model.safetensors: the adapter as PEFT saved it, with random values;
* CASE/record.safetensors: input.I; output in eval mode; sgd, the losses of STEPS steps in training mode (except gpt2) after
  manual_seed(2);
  trained.NAME, tensors of the adapter afterwards;
and initial/ is an adapter as PEFT makes it after manual_seed(5).

    tar --sort=name --owner=0 --group=0 --mtime=2026-01-01 -czf tests/adapters/cases.tar.gz -C OUT .
"""
import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_exported_programs import build, generator, logits_of, loss_of, write_safetensors  # noqa: E402

STEPS = 5


class Mixed(nn.Module):
    """A layer of each kind."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 6)
        self.conv1 = nn.Conv1d(6, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(1, 3, (3, 2), stride=2, padding=1)
        self.conv3 = nn.Conv3d(1, 2, (1, 3, 2), padding=(0, 1, 0), bias=False)
        self.fc = nn.Linear(6, 8)
        self.head = nn.Linear(8, 4, bias=False)

    def forward(self, ids):
        x = torch.tanh(self.conv1(self.embed(ids).transpose(1, 2)))
        x = torch.tanh(self.conv2(x.unsqueeze(1)))
        x = torch.tanh(self.conv3(x.unsqueeze(1)))
        x = x.mean((3, 4)).flatten(1)
        return self.head(torch.tanh(self.fc(x)))


KINDS = ["embed", "conv1", "conv2", "conv3", "fc"]
CASES = {
    "linear": ("mixed", dict(r=4, lora_alpha=8, target_modules=["fc", "head"])),
    "kinds": ("mixed", dict(r=4, lora_alpha=16, target_modules=KINDS)),
    "rslora": ("mixed", dict(r=4, lora_alpha=16, target_modules=KINDS, use_rslora=True)),
    "dora": ("mixed", dict(r=4, lora_alpha=16, target_modules=KINDS, use_dora=True)),
    "dropout": ("mixed", dict(r=4, lora_alpha=16, target_modules=KINDS, lora_dropout=0.25)),
    "dora_dropout": ("mixed", dict(r=4, lora_alpha=16, target_modules=KINDS, lora_dropout=0.25, use_dora=True)),
    "patterns": ("mixed", dict(r=4, lora_alpha=8, target_modules="(conv|fc|head).*", exclude_modules=["conv3"],
                               rank_pattern={"conv.": 2, "^head": 3}, alpha_pattern={"fc": 2.5})),
    "bias": ("mixed", dict(r=2, target_modules=["fc", "conv1"], bias="lora_only")),
    "bias_all": ("mixed", dict(r=2, target_modules=["fc"], bias="all")),
    "saved": ("mixed", dict(r=2, target_modules=["fc"], modules_to_save=["head", "conv1"])),
    "llama": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")),
    "llama_all": ("llama", dict(r=2, target_modules="all-linear", use_rslora=True, lora_dropout=0.1)),
    "llama_layer": ("llama", dict(r=2, target_modules=["up_proj"], layers_to_transform=[1])),
    "llama_embed": ("llama", dict(r=2, target_modules=["embed_tokens", "down_proj"], use_dora=True)),
    "gpt2": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
    "gpt2_tied": ("gpt2", dict(r=4, target_modules=["wte", "c_fc"], fan_in_fan_out=True, use_dora=True)),
}


def model_of(name):
    """Returns the model, arguments and keyword arguments."""
    if name == "mixed":
        torch.manual_seed(0)
        return Mixed(), (torch.randint(0, 16, (5, 7), generator=generator(3)),), {}
    model, args, kwargs, _, _ = build(name)
    return model, args, kwargs


def save(model, directory):
    model.save_pretrained(directory)
    (directory / "README.md").unlink()


def make(out, name):
    kind, config = CASES[name]
    base, args, kwargs = model_of(kind)
    model = get_peft_model(base, LoraConfig(**config))
    torch.manual_seed(4)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key and "magnitude" not in key:
                parameter.normal_(std=0.2)
            elif parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    save(model, out / name)
    tensors = {f"input.{i}": tensor for i, tensor in enumerate([*args, *kwargs.values()])}
    model.eval()
    tensors["output"] = logits_of(model(*args, **kwargs))
    model.train(kind != "gpt2")  # which has dropout of its own
    torch.manual_seed(2)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(*args, **kwargs))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    tensors["sgd"] = torch.tensor(losses, dtype=torch.float64)
    tensors.update({f"trained.{key}": value.clone() for key, value in get_peft_model_state_dict(model).items()})
    write_safetensors(out / name / "record.safetensors", tensors)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    write_safetensors(out / "mixed.safetensors", dict(model_of("mixed")[0].state_dict()))
    for name in CASES:
        make(out, name)
        print(name)
    base = model_of("mixed")[0]
    torch.manual_seed(5)
    save(get_peft_model(base, LoraConfig(r=4, target_modules=KINDS)), out / "initial")


if __name__ == "__main__":
    main()
