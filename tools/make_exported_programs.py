#!/usr/bin/env python3
"""Makes the programs of tests/exported: small models exported by accelerate_cpp_export.py, and what PyTorch computes with them.

    python tools/make_exported_programs.py [--like DIRECTORY] OUT [NAME...]

Needs torch and transformers. Writes NAME.pt2 and NAME.safetensors, whose tensors are
* models: input.I and other.I (the same inputs with other sizes), logits, other_logits and eval_logits, and the losses of 20
  steps, even ones with the inputs and odd ones with the others: sgd, then with the same weights adamw; buffer.NAME after sgd;
  in bf16 also program_sgd, of Python's run of the program, whose gradients are rounded in another order than the model's;
* features: input.I, output.I, grad.NAME of the sum of outputs that have gradients, and buffer.NAME.
A model without a loss of its own has the mean of its squared output.

With --like, models begin with the weights of the programs in DIRECTORY (random numbers may change between versions of
PyTorch), and a NAME.safetensors that equals the one there is not written.

With torch 2.11.0, and with torch 2.15.0 after extracting the first archive into DIRECTORY:

    tar --sort=name --owner=0 --group=0 --mtime=2026-01-01 -czf tests/exported/programs.tar.gz -C OUT .
    tar --sort=name --owner=0 --group=0 --mtime=2026-01-01 -cJf tests/exported/programs_of_torch_2_15.tar.xz -C OUT .

Programs that only tests of divided models read are named (DIVIDED), and are in divided_programs.tar.gz. Those of MORE are in
more_programs.tar.xz, with those of torch 2.15.0 in the directory 2.15.
"""
import argparse
import json
import pathlib
import struct
import sys
import zipfile

import torch
from torch import nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
from accelerate_cpp_export import export_for_cpp  # noqa: E402

NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL"}
BATCH = Dim("batch", min=1, max=64)
LENGTH = Dim("length", min=3, max=64)
STEPS = 20


def write_record(out, name, tensors, like):
    contents = safetensors_of(tensors)
    known = like / f"{name}.safetensors" if like else None
    if not known or not known.exists() or known.read_bytes() != contents:
        (out / f"{name}.safetensors").write_bytes(contents)


def safetensors_of(tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        contents = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(contents)]}
        data += contents
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_safetensors(path, tensors):
    path.write_bytes(safetensors_of(tensors))


def generator(seed):
    return torch.Generator().manual_seed(seed)


def tokens(batch, length, seed=0):
    return torch.randint(0, 64, (batch, length), generator=generator(seed))


def images(batch, seed=0, size=16):
    return torch.randn(batch, 3, size, size, generator=generator(seed))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.body(self.stem(x))
        return self.head(self.drop(x.mean((2, 3))))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 12)
        self.lstm = nn.LSTM(12, 12, num_layers=2, batch_first=True, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(24, 64)

    def forward(self, ids):
        return self.head(self.lstm(self.embedding(ids))[0])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(11, 3, 3, padding=1)

    def forward(self, x):
        down = self.down(x)
        up = self.up(torch.cat([self.middle(down), down], 1))
        up = nn.functional.interpolate(up, size=x.shape[2:], mode="nearest")
        return self.out(torch.cat([up, x], 1))


class CausalEncoder(nn.Module):
    """A mask of its own around a layer of PyTorch, and attention written by hand."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(64, 16)
        self.places = nn.Embedding(64, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
        self.inputs = nn.Linear(16, 48)
        self.head = nn.Linear(16, 64)

    def forward(self, input_ids, position_ids):
        x = self.tokens(input_ids) + self.places(position_ids)
        x = self.layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))
        q, k, v = self.inputs(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4).unbind()
        mask = x.new_ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return self.head(x + nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(-2))


class Contrastive(nn.Module):
    """CLIP with its loss, whose own len(logits) would fix the batch's size."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, input_ids, pixel_values, attention_mask):
        out = self.net(input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask)
        labels = torch.arange(input_ids.shape[0], device=input_ids.device)
        losses = [nn.functional.cross_entropy(logits, labels) for logits in (out.logits_per_text, out.logits_per_image)]
        return {"loss": sum(losses) / 2, "logits": out.logits_per_text, "image_embeds": out.image_embeds}


class LogitsOnly(nn.Module):
    """The loss stays outside, as in programs that have one of their own."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, input_ids):
        return self.net(input_ids=input_ids).logits


class AtPositions(nn.Module):
    """For context parallelism: each rank has some of the positions."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, input_ids, position_ids):
        return self.net(input_ids=input_ids, position_ids=position_ids).logits


def causal(kind, **changes):
    import transformers
    config = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=64, use_cache=False, head_dim=4, pad_token_id=0, bos_token_id=1,
                  eos_token_id=2)
    return getattr(transformers, kind + "ForCausalLM")(getattr(transformers, kind + "Config")(**{**config, **changes}))


def gpt2_config(**changes):
    import transformers
    return transformers.GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=2, n_head=4, use_cache=False, **changes)


def text_inputs(batch, length, seed=0, masked=0):
    ids = tokens(batch, length, seed)
    mask = torch.ones_like(ids)
    if masked:
        mask[0, -masked:] = 0
    return dict(input_ids=ids, attention_mask=mask, labels=ids.clone())


def text_model(model):
    shapes = {name: {0: BATCH, 1: LENGTH} for name in text_inputs(1, 2)}
    return model, (), text_inputs(3, 8), shapes, ((), text_inputs(5, 12, 1, masked=4))


def image_model(model, size=16):
    def inputs(batch, seed):
        return dict(pixel_values=images(batch, seed, size), labels=torch.arange(batch) % 2)
    return model, (), inputs(3, 0), {"pixel_values": {0: BATCH}, "labels": {0: BATCH}}, ((), inputs(5, 1))


def plain_model(model, inputs, others, shapes):
    return model, (inputs,), {}, shapes, ((others,), {})


def build(name):
    """Returns the model, arguments, keyword arguments, dynamic shapes, and arguments of other sizes."""
    import transformers as hf
    torch.manual_seed(0)
    if name == "cnn":
        return plain_model(Cnn(), images(4), images(7, 1), {"x": {0: BATCH}})
    if name == "lstm":
        return plain_model(Lstm(), tokens(3, 8), tokens(5, 8, 1), {"ids": {0: BATCH}})
    if name == "unet":
        return plain_model(UNet(), images(2, 0, 8), images(3, 1, 8), {"x": {0: BATCH}})
    if name == "gpt2":
        return plain_model(LogitsOnly(hf.GPT2LMHeadModel(gpt2_config())), tokens(3, 8), tokens(5, 12, 1), {"input_ids": {0: BATCH, 1: LENGTH}})
    if name in ("llama", "llama_bf16"):
        return text_model(causal("Llama"))
    if name in ("llama_context", "gpt2_context", "encoder_context"):
        def inputs(*size):
            ids = tokens(*size)
            return dict(input_ids=ids, position_ids=torch.arange(ids.shape[1]).expand_as(ids).contiguous())
        shapes = {name: {0: BATCH, 1: LENGTH} for name in inputs(1, 2)}
        model = CausalEncoder() if name == "encoder_context" else AtPositions(
            causal("Llama") if name == "llama_context" else hf.GPT2LMHeadModel(gpt2_config(embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)))
        return model, (), inputs(3, 8), shapes, ((), inputs(5, 12, 1))
    if name == "llama_in_bf16":
        return text_model(causal("Llama").to(torch.bfloat16))
    if name == "llama_eager":
        return text_model(causal("Llama", attn_implementation="eager"))
    if name == "qwen3":
        return text_model(causal("Qwen3"))
    if name == "mistral":
        return text_model(causal("Mistral", sliding_window=4))
    if name == "llama_tied":
        return text_model(causal("Llama", num_attention_heads=8, num_key_value_heads=4, tie_word_embeddings=True))
    if name == "qwen2":
        return text_model(causal("Qwen2"))
    if name == "phi3":
        return text_model(causal("Phi3"))
    if name == "gemma2":
        return text_model(causal("Gemma2", sliding_window=4))
    if name == "mixtral":
        return text_model(causal("Mixtral", num_local_experts=4, num_experts_per_tok=2, experts_implementation="batched_mm"))
    if name == "bert":
        config = hf.BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
                               max_position_embeddings=64)
        model, args, inputs, shapes, (_, others) = text_model(hf.BertForSequenceClassification(config))
        for kwargs in (inputs, others):
            kwargs["labels"] = torch.arange(len(kwargs["input_ids"])) % 2
        shapes["labels"] = {0: BATCH}
        return model, args, inputs, shapes, ((), others)
    if name == "t5":
        config = hf.T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, decoder_start_token_id=0,
                             use_cache=False)
        return text_model(hf.T5ForConditionalGeneration(config))
    if name == "clip":
        size = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, projection_dim=12)
        config = hf.CLIPConfig(
            text_config=dict(size, vocab_size=64, max_position_embeddings=64, bos_token_id=1, eos_token_id=63, pad_token_id=0),
            vision_config=dict(size, image_size=16, patch_size=4), projection_dim=12)

        def inputs(batch, length, seed, masked=0):
            text = text_inputs(batch, length, seed, masked)
            text["input_ids"][:, -1] = 63
            return dict(input_ids=text["input_ids"], pixel_values=images(batch, seed), attention_mask=text["attention_mask"])
        shapes = dict(input_ids={0: BATCH, 1: LENGTH}, pixel_values={0: BATCH}, attention_mask={0: BATCH, 1: LENGTH})
        return Contrastive(hf.CLIPModel(config)), (), inputs(3, 8, 0), shapes, ((), inputs(5, 12, 1, masked=4))
    if name == "whisper":
        config = hf.WhisperConfig(
            vocab_size=64, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=8, max_target_positions=64,
            dropout=0.1, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)

        def inputs(batch, length, seed):
            return dict(input_features=torch.randn(batch, 8, 16, generator=generator(seed)), labels=tokens(batch, length, seed))
        shapes = dict(input_features={0: BATCH}, labels={0: BATCH, 1: LENGTH})
        return hf.WhisperForConditionalGeneration(config), (), inputs(3, 8, 0), shapes, ((), inputs(5, 12, 1))
    if name == "vit":
        return image_model(hf.ViTForImageClassification(hf.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, image_size=16, patch_size=4)))
    if name == "resnet":
        return image_model(hf.ResNetForImageClassification(hf.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", num_labels=2)))
    if name == "convnext":
        return image_model(hf.ConvNextForImageClassification(hf.ConvNextConfig(
            hidden_sizes=[8, 8, 12, 12], depths=[1, 1, 1, 1], image_size=32, num_labels=2)), 32)
    if name == "swin":
        return image_model(hf.SwinForImageClassification(hf.SwinConfig(
            image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=2)))
    raise SystemExit(f"unknown model {name}")


MODELS = ["cnn", "lstm", "unet", "gpt2", "llama", "llama_bf16", "llama_context", "llama_eager", "llama_in_bf16", "qwen3", "mistral", "gemma2", "mixtral", "bert",
          "t5", "vit", "resnet", "convnext", "swin"]


DIVIDED = ["llama_tied", "phi3", "qwen2", "BufferAbove", "EvaluatedBuffer"]


MORE = ["clip", "encoder_context", "gpt2_context", "whisper"]


def logits_of(out):
    return out if isinstance(out, torch.Tensor) else out["logits"]


def loss_of(out):
    return out["loss"] if isinstance(out, dict) and out.get("loss") is not None else logits_of(out).square().mean()


def losses_of(model, optimizer, batches, precision):
    torch.manual_seed(2)
    losses = []
    for step in range(STEPS):
        args, kwargs = batches[step % 2]
        optimizer.zero_grad()
        with precision():  # which keeps casts of weights until it ends
            loss = loss_of(model(*args, **kwargs))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def read_weights(model, path):
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].split("/")[0]
        config = json.loads(archive.read(f"{root}/data/weights/model_weights_config.json"))["config"]
        for name, value in model.state_dict().items():
            contents = bytearray(archive.read(f"{root}/data/weights/{config[name]['path_name']}"))
            value.copy_(torch.frombuffer(contents, dtype=value.dtype).view(value.shape))


def make_model(out, name, like):
    model, args, kwargs, shapes, others = build(name)
    model.train()
    if like and (like / f"{name}.pt2").exists():
        read_weights(model, like / f"{name}.pt2")
    autocast = torch.bfloat16 if name == "llama_bf16" else None
    facts = export_for_cpp(model, out / f"{name}.pt2", args, kwargs, dynamic_shapes=shapes, autocast=autocast,
                           causal=name.endswith("_context"))
    batches = [(args, kwargs), others]
    tensors = {}
    for prefix, (a, k) in zip(("input", "other"), batches):
        tensors.update({f"{prefix}.{i}": tensor for i, tensor in enumerate([*a, *k.values()])})
    start = {key: value.clone() for key, value in model.state_dict().items()}

    def precision():
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast is not None)

    with precision():
        for key, (a, k) in zip(("logits", "other_logits"), batches):
            torch.manual_seed(1)
            tensors[key] = logits_of(model(*a, **k)).float()
    model.load_state_dict(start)
    model.eval()
    with precision():
        tensors["eval_logits"] = logits_of(model(*others[0], **others[1])).float()
    model.train()
    tensors["sgd"] = losses_of(model, torch.optim.SGD(model.parameters(), lr=0.05), batches, precision)
    tensors.update({f"buffer.{key}": buffer.clone() for key, buffer in model.named_buffers()})
    if autocast or next(model.parameters()).dtype == torch.bfloat16:
        program = torch.export.load(out / f"{name}.pt2").module()
        tensors["program_sgd"] = losses_of(program, torch.optim.SGD(program.parameters(), lr=0.05), batches, precision)
    model.load_state_dict(start)
    tensors["adamw"] = losses_of(model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01), batches, precision)
    write_record(out, name, tensors, like)
    return facts


# One small module per thing that a program can contain.

X = torch.randn(4, 8, generator=generator(0))
ROWS = Dim("rows", min=2, max=32)


class Feature(nn.Module):
    args, kwargs, shapes = (X,), {}, ({0: ROWS},)

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)


class NoGrad(Feature):
    def forward(self, x):
        h = self.fc(x)
        with torch.no_grad():
            scale = h.abs().mean() + 1
        return h / scale


class Autocast(Feature):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.fc(x)
        with torch.autocast("cpu", enabled=False):
            return self.fc(h.float())


class CondOnData(Feature):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda h: h.sin(), lambda h: h.cos(), (self.fc(x),))


class CondOnSize(Feature):
    def forward(self, x):
        return torch.cond(x.shape[0] > 6, lambda h: h.sin(), lambda h: h.cos(), (self.fc(x),))


class Map(Feature):
    def forward(self, x):
        from torch._higher_order_ops.map import map as over_rows
        return over_rows(lambda row: self.fc(row).sin(), x)


class WhileLoop(Feature):
    def forward(self, x):
        from torch._higher_order_ops import while_loop
        return while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * 2), (torch.tensor(0), self.fc(x)))[1]


class Scan(Feature):
    """Gradients are those of the loop: torch 2.11 computes others for scan."""

    def forward(self, x):
        from torch._higher_order_ops.scan import scan
        return scan(lambda total, row: (total + row, total * row), torch.zeros(8), self.fc(x), dim=0)

    def reference(self, x):
        total, rows = torch.zeros(8), []
        for row in self.fc(x).unbind(0):
            rows.append(total * row)
            total = total + row
        return total, torch.stack(rows)


class Buffers(Feature):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(8))
        self.register_buffer("hidden", torch.ones(8), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.constant = torch.full((8,), 0.5)

    def forward(self, x):
        h = self.fc(x)
        self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        self.steps += 1
        return h * self.hidden + self.constant + self.average


class AssignedBuffer(Feature):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x):
        h = self.fc(x)
        self.average = self.average * 0.9 + h.detach().mean(0) * 0.1
        return h + self.average


class BufferAbove(Feature):
    """Blocks that read buffers of the module around them, one of which the first block's part changes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x):
        h = self.fc(x)
        self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        for layer in self.layers:
            h = layer(h).tanh() * self.scale
        return h


class EvaluatedBuffer(Feature):
    """The last block reads in eval() what the first one changes in train()."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x):
        h = self.fc(x)
        if self.training:
            self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        for layer in self.layers:
            h = layer(h).tanh()
        return h if self.training else h + self.average


class Nested(Feature):
    args, kwargs = ({"a": X, "b": (X + 1, X * 2)},), {"scale": 3, "flag": True, "none": None}
    shapes = {"inputs": {"a": {0: ROWS}, "b": ({0: ROWS}, {0: ROWS})}, "scale": None, "flag": None, "none": None}

    def forward(self, inputs, scale=1, flag=False, none=None):
        h = self.fc(inputs["a"]) * scale
        return {"h": h, "pair": (inputs["b"][0] + h, [inputs["b"][1] * h, None]), "n": 7}


class Lists(Feature):
    def forward(self, x):
        a, b = self.fc(x).chunk(2, dim=1)
        rows = torch.stack(torch.unbind(a, 1)[::-1], 1)
        top, index = b.topk(2, dim=1)
        return torch.cat([rows, top, b[:, None, 0], b[..., index[0]]], 1), index


class Sizes(Feature):
    def forward(self, x):
        n = x.shape[0]
        h = self.fc(x)
        position = torch.arange(n).to(x.dtype) / max(n, 2)
        rest = torch.zeros(n % 3 + 1, 8)
        return torch.cat([h * position[:, None], rest, h[: n // 2]]) * (1.0 / (n ** 0.5)) + n * 0.5 + (-n)


class DataDependent(Feature):
    def forward(self, x):
        h = self.fc(x)
        index = (x[:, 0] > 0).nonzero().squeeze(1)
        return h[index].sum(0)


class Encoder(Feature):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def forward(self, x):
        return self.layer(self.fc(x)[:, None, :].expand(-1, 3, -1))


class Norms(Feature):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8, padding_idx=0)
        self.group = nn.GroupNorm(2, 8)
        self.instance = nn.InstanceNorm1d(8, affine=True)
        self.conv = nn.Conv1d(8, 8, 3, padding="same")
        self.drop = nn.Dropout1d(0.3)

    def forward(self, x):
        h = self.embedding(x.abs().long() % 10) + self.fc(x)[:, None, :]
        h = self.drop(self.conv(self.instance(self.group(h.transpose(1, 2)))))
        h = torch.einsum("bij,bkj->bik", h, h).masked_fill(torch.eye(8, dtype=torch.bool), float("-inf"))
        c = torch.view_as_complex(x.reshape(x.shape[0], 4, 2).contiguous()) * (2 + 1j)
        return h.softmax(-1).nan_to_num() + torch.view_as_real(c).flatten(1).sum(1)[:, None, None]


class RandomNumbers(Feature):
    def forward(self, x):
        return self.fc(x) + torch.rand_like(x) + torch.randn(x.shape[0], 8) + torch.bernoulli(torch.full_like(x, 0.5))


class Tied(Feature):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.fc.weight

    def forward(self, x):
        return self.tied(self.frozen(self.fc(x)))


class Shared(Feature):
    """Calls one module twice, and under two names."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([self.fc, nn.Linear(8, 8)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.fc(x)


class Branch(Feature):
    """Reads self.training, so that eval() has a graph of its own."""

    def forward(self, x):
        h = self.fc(x)
        return h * 2 if self.training else h


class Numbers(Feature):
    """A size as an argument."""
    args, shapes = (X, 3), ({0: ROWS}, Dim.DYNAMIC)

    def forward(self, x, n):
        return self.fc(x) * n + torch.ones(n).sum()


class Double(Feature):
    args = (X.double(),)

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8).double()

    def forward(self, x):
        return self.fc(x).to(torch.bfloat16).float() * 2


def make_feature(out, kind, like):
    torch.manual_seed(0)
    model = kind().train()
    facts = export_for_cpp(model, out / f"{kind.__name__}.pt2", kind.args, kind.kwargs, dynamic_shapes=kind.shapes,
                           check=kind is not Scan)
    torch.manual_seed(1)
    outputs = tree_leaves(getattr(model, "reference", model)(*kind.args, **kind.kwargs))
    sum(o.sum() for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad).backward()
    tensors = {}
    given = [leaf for leaf in tree_leaves((kind.args, kind.kwargs)) if isinstance(leaf, torch.Tensor)]
    tensors.update({f"input.{i}": tensor for i, tensor in enumerate(given)})
    for i, value in enumerate(outputs):
        if value is not None:
            tensors[f"output.{i}"] = torch.as_tensor(value)
    tensors.update({f"grad.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None})
    tensors.update({f"buffer.{name}": buffer.clone() for name, buffer in model.named_buffers()})
    model.eval()
    torch.manual_seed(1)
    for i, value in enumerate(tree_leaves(getattr(model, "reference", model)(*kind.args, **kind.kwargs))):
        if value is not None:
            tensors[f"eval_output.{i}"] = torch.as_tensor(value)
    write_record(out, kind.__name__, tensors, like)
    return facts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--like", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads add what belongs to one element in any order
    options.out.mkdir(parents=True, exist_ok=True)
    features = {kind.__name__: kind for kind in Feature.__subclasses__()}
    for name in options.names or [*MODELS, *(name for name in features if name not in DIVIDED)]:
        try:
            if name in features:
                facts = make_feature(options.out, features[name], options.like)
            else:
                facts = make_model(options.out, name, options.like)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:400]}", flush=True)
            continue
        size = (options.out / f"{name}.pt2").stat().st_size
        print(f"{name}: {'one graph' if facts['one_graph'] else 'two graphs'}, {size} bytes", flush=True)


if __name__ == "__main__":
    main()
