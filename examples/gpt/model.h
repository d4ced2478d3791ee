#pragma once

#include <cstdint>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <accelerate/experts.h>
#include <accelerate/pipeline_layers.h>
#include <accelerate/tensor_parallel.h>

struct GptOptions {
  std::int64_t block_size = 64;
  std::int64_t num_layers = 4;
  std::int64_t num_heads = 4;
  std::int64_t width = 64;
  /// Number of experts that replace each block's MLP; each token uses two. 0:
  /// none.
  std::int64_t num_experts = 0;
};

/// Causal attention, then two linear layers or experts per token.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x_BTW);

  std::int64_t num_heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out;
  /// One of the two is null.
  torch::nn::Sequential mlp = nullptr;
  accelerate::ExpertLayer experts = nullptr;
};
TORCH_MODULE(Block);

/// A language model over bytes. The token embedding is also the last layer.
struct GptImpl : torch::nn::Module {
  static constexpr std::int64_t kTokens = 256;

  explicit GptImpl(const GptOptions& options);
  /// Logits of the next token at each position: [batch, time, kTokens].
  /// `places_T` are the positions of the tokens in their sequences: a rank may
  /// have only part of a sequence.
  at::Tensor forward(const at::Tensor& tokens_BT, const at::Tensor& places_T);
  /// The same for complete sequences.
  at::Tensor forward(const at::Tensor& tokens_BT);

  /// The layers of a pipeline's stages; the first takes both arguments of
  /// forward, with places for each sequence.
  [[nodiscard]] accelerate::PipelineLayers layers() const;

  /// How ranks split each layer. Logits stay split.
  static accelerate::ParallelizePlan parallelize_plan(
      const GptOptions& options);

  torch::nn::Embedding tokens, positions;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);
