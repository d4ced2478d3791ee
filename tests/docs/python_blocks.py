#!/usr/bin/env python3
"""Runs the Python programs of the guides, on a tiny Llama in the directory that they name.

usage: python_blocks.py ROOT PAGE...

A program that uses `model` without making it gets that model. Compiling takes a minute, and is left to
tests/exported/make_package.py. Exits with 77 if Python has no torch and transformers.
"""
import os
import re
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)


def tiny_llama():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=2, max_position_embeddings=2048))


def main():
    root = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(root / "python"))
    try:
        model = tiny_llama()
    except ImportError as error:
        print(error)
        return 77
    os.environ["HF_HUB_OFFLINE"] = "1"
    count = 0
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        model.save_pretrained("directory")
        for page in sys.argv[2:]:
            for text in BLOCK.findall((root / page).read_text()):
                if "compile_for_cpp" in text:
                    continue
                print(f"{page}:\n{text}", flush=True)
                exec(compile(text, page, "exec"), {"model": model})
                written = re.search(r'"(\w+\.pt2)"', text)[1]
                assert Path(written).stat().st_size > 1000, written
                Path(written).unlink()
                count += 1
        os.chdir(root)
    print(count, "programs ran")
    return 0 if count else 1


sys.exit(main())
