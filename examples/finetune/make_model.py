"""Writes a Llama with random weights as Hugging Face does: config.json and model.safetensors.

    python make_model.py DIRECTORY [--width 64] [--layers 2] [--vocabulary 256]

Stands for a directory that was downloaded; any other causal model works the same.
"""
import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=256)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=options.vocabulary, hidden_size=options.width, intermediate_size=2 * options.width,
        num_hidden_layers=options.layers, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=True, pad_token_id=None, bos_token_id=1, eos_token_id=2)
    LlamaForCausalLM(config).save_pretrained(options.directory)


if __name__ == "__main__":
    main()
