#include "model.h"

#include <algorithm>

#include <torch/torch.h>

namespace nn = torch::nn;

BlockImpl::BlockImpl(const GptOptions& options)
    : num_heads(options.num_heads),
      norm1(nn::LayerNormOptions({options.width})),
      norm2(nn::LayerNormOptions({options.width})),
      qkv(options.width, 3 * options.width),
      out(options.width, options.width) {
  register_module("norm1", norm1);
  register_module("norm2", norm2);
  register_module("qkv", qkv);
  register_module("out", out);
  if (options.num_experts == 0) {
    mlp = register_module(
        "mlp",
        nn::Sequential(
            nn::Linear(options.width, 4 * options.width),
            nn::GELU(),
            nn::Linear(4 * options.width, options.width)));
    return;
  }
  experts = register_module(
      "experts",
      accelerate::ExpertLayer(accelerate::ExpertLayerOptions{
          .hidden_size = options.width,
          .num_experts = options.num_experts,
          .router =
              {.top_k = std::min<std::int64_t>(2, options.num_experts),
               .balance_loss_coefficient = 1e-2,
               .z_loss_coefficient = 1e-3},
          .mlp = accelerate::ExpertMlpOptions{
              .intermediate_size = 2 * options.width}}));
}

at::Tensor BlockImpl::forward(const at::Tensor& x_BTW) {
  // With tensor parallelism, a rank has only some of the heads.
  const std::int64_t head_size = x_BTW.size(2) / num_heads;
  const auto heads = [&](const at::Tensor& part) {
    return part.unflatten(-1, {-1, head_size}).transpose(1, 2);
  };
  const auto parts = qkv(norm1(x_BTW)).chunk(3, -1);
  const at::Tensor mixed = at::scaled_dot_product_attention(
      heads(parts[0]),
      heads(parts[1]),
      heads(parts[2]),
      /*attn_mask=*/{},
      /*dropout_p=*/0,
      /*is_causal=*/true);
  const at::Tensor x = x_BTW + out(mixed.transpose(1, 2).flatten(-2));
  return x + (mlp ? mlp->forward(norm2(x)) : experts(norm2(x)));
}

GptImpl::GptImpl(const GptOptions& options)
    : tokens(kTokens, options.width),
      positions(options.block_size, options.width),
      norm(nn::LayerNormOptions({options.width})) {
  register_module("tokens", tokens);
  register_module("positions", positions);
  for (std::int64_t i = 0; i < options.num_layers; ++i)
    blocks->push_back(Block(options));
  register_module("blocks", blocks);
  register_module("norm", norm);
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& weight : {tokens->weight, positions->weight})
    weight.normal_(0, 0.02);
}

at::Tensor GptImpl::forward(
    const at::Tensor& tokens_BT,
    const at::Tensor& places_T) {
  at::Tensor x = tokens(tokens_BT) + positions(places_T);
  for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
  return torch::matmul(norm(x), tokens->weight.t());
}

at::Tensor GptImpl::forward(const at::Tensor& tokens_BT) {
  return forward(
      tokens_BT, torch::arange(tokens_BT.size(1), tokens_BT.device()));
}

accelerate::PipelineLayers GptImpl::layers() const {
  accelerate::PipelineLayers layers;
  layers
      .add(
          "tokens",
          tokens,
          [positions = positions.ptr()](
              nn::EmbeddingImpl& embedding,
              const at::Tensor& tokens_BT,
              const at::Tensor& places_BT) {
            return embedding.forward(tokens_BT) + positions->forward(places_BT);
          })
      .uses("positions", positions)
      .add_each<BlockImpl>("blocks", *blocks)
      .add(
          "norm",
          norm,
          [tokens = tokens](nn::LayerNormImpl& last, const at::Tensor& x) {
            return torch::matmul(last.forward(x), tokens->weight.t());
          })
      .uses("tokens", tokens);
  return layers;
}

accelerate::ParallelizePlan GptImpl::parallelize_plan(
    const GptOptions& options) {
  using accelerate::ColwiseParallel, accelerate::RowwiseParallel,
      accelerate::Shard;
  const std::int64_t width = options.width, num_heads = options.num_heads;
  accelerate::ParallelizePlan plan{
      {"tokens", RowwiseParallel{.logits_layouts = Shard{-1}}},
      {"blocks.*.qkv",
       ColwiseParallel{
           .num_heads = num_heads, .projections = {width, width, width}}},
      {"blocks.*.out", RowwiseParallel{.num_heads = num_heads}}};
  // An ExpertLayer is split without a plan.
  if (options.num_experts > 0) return plan;
  plan.emplace_back("blocks.*.mlp.0", ColwiseParallel{});
  plan.emplace_back("blocks.*.mlp.2", RowwiseParallel{});
  return plan;
}
