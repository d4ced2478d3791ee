#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <accelerate/attention.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "parallel/context/sequence_tensors.h"
#include "support/run_on_ranks.h"

/// Attention over divided sequences, compared with attention in one process.
namespace accelerate::attention_problem {

struct Problem {
  std::int64_t length = 12;
  std::int64_t batch = 2;
  std::int64_t heads = 2;
  std::int64_t key_heads = 2;
  std::int64_t size = 4;
  std::int64_t value_size = 4;
  at::ScalarType dtype = at::kDouble;
  SequenceCut cut = SequenceCut::zigzag;
  SequenceAttentionOptions options = {};
};

/// Queries, keys and values of the whole sequence, and the output's gradient.
struct Sequence {
  std::vector<at::Tensor> inputs;
  at::Tensor grad;
};

inline Sequence sequence_of(const Problem& problem) {
  auto generator = at::detail::createCPUGenerator(7);
  const auto random = [&](std::int64_t heads, std::int64_t size) {
    return at::randn(
               {problem.batch, heads, problem.length, size},
               generator,
               at::kDouble)
        .to(problem.dtype);
  };
  return {
      {random(problem.heads, problem.size),
       random(problem.key_heads, problem.size),
       random(problem.key_heads, problem.value_size)},
      random(problem.heads, problem.value_size)};
}

using Attention =
    std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// The output, and the gradients of the three inputs.
inline std::vector<at::Tensor> results_of(
    const std::vector<at::Tensor>& inputs,
    const at::Tensor& grad,
    const Attention& attention) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.detach().clone().requires_grad_(true));
  const at::Tensor output = attention(leaves);
  output.backward(grad);
  return {
      output.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

inline std::vector<at::Tensor> on_one_process(const Problem& problem) {
  const Sequence whole = sequence_of(problem);
  return results_of(whole.inputs, whole.grad, [&](const auto& inputs) {
    std::optional<at::Tensor> mask = problem.options.attn_mask;
    if (problem.options.document_ids) {
      const at::Tensor& ids = *problem.options.document_ids;
      mask = ids.unsqueeze(-1).eq(ids.unsqueeze(-2)).unsqueeze(1);
      if (problem.options.is_causal) {
        mask = mask->logical_and(
            at::ones({problem.length, problem.length}, at::kBool).tril());
      }
    }
    if (problem.options.key_padding_mask) {
      const at::Tensor real = problem.options.key_padding_mask->logical_not()
                                  .unsqueeze(1)
                                  .unsqueeze(1);
      if (problem.options.is_causal && !mask)
        mask = at::ones({problem.length, problem.length}, at::kBool).tril();
      const double hidden = -std::numeric_limits<double>::infinity();
      mask = !mask ? real
          : mask->scalar_type() == at::kBool
          ? mask->logical_and(real)
          : mask->masked_fill(real.logical_not(), hidden);
    }
    return at::scaled_dot_product_attention(
        inputs[0],
        inputs[1],
        inputs[2],
        mask,
        0.0,
        problem.options.is_causal && !mask,
        problem.options.scale,
        problem.options.enable_gqa);
  });
}

/// Padded positions get garbage, which must have no effect.
inline at::Tensor local(
    const at::Tensor& tensor,
    const SequenceShards& shards,
    int rank,
    double fill = 77) {
  return detail::local_positions(tensor, 2, shards, rank, fill);
}

inline void expect_close(
    const at::Tensor& found,
    const at::Tensor& expected,
    double tolerance,
    const std::string& what) {
  EXPECT_TRUE(at::allclose(found, expected, tolerance, tolerance))
      << what << " differs by "
      << (found - expected).abs().max().item<double>();
}

/// Expects each rank's positions of the output and of the gradients, except for
/// padding, to equal those of torch's scaled_dot_product_attention.
inline void expect_same_as_one_process(
    const Problem& problem,
    int num_ranks,
    double tolerance,
    decltype(&ring_attention) attention = &ring_attention) {
  const Sequence whole = sequence_of(problem);
  const std::vector<at::Tensor> expected = on_one_process(problem);
  testing::run_in_worlds(num_ranks, [&](const World& world) {
    const SequenceShards shards(problem.length, num_ranks, problem.cut);
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& input : whole.inputs)
      inputs.push_back(local(input, shards, world.rank()));
    const std::vector<at::Tensor> found = results_of(
        inputs,
        local(whole.grad, shards, world.rank(), 0),
        [&](const auto& leaves) {
          return attention(
              leaves[0],
              leaves[1],
              leaves[2],
              world.group(),
              shards,
              problem.options);
        });
    std::int64_t real = 0;
    for (const std::int64_t position : shards.positions(world.rank()))
      real += position < problem.length ? 1 : 0;
    const char* const names[] = {"output", "dquery", "dkey", "dvalue"};
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].scalar_type(), problem.dtype);
      expect_close(
          found[i].narrow(2, 0, real),
          local(expected[i], shards, world.rank()).narrow(2, 0, real),
          tolerance,
          names[i]);
    }
  });
}

inline constexpr double kExact = 1e-12;

}  // namespace accelerate::attention_problem
