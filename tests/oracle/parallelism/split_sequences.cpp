#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <accelerate/attention.h>

#include "oracle/parallelism/parallelism.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle::topic_parallelism {

namespace split_sequences_detail {

constexpr std::int64_t kPositions = 2;

struct RankOutcome {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
  std::vector<std::int64_t> positions;
};

// Puts the ranks' parts of a sequence together in order.
template <class Part>
at::Tensor merged(
    const std::vector<RankOutcome>& ranks,
    const SequenceShards& shards,
    Part&& part) {
  std::vector<at::Tensor> parts;
  for (const RankOutcome& rank : ranks) parts.push_back(part(rank));
  return at::cat(parts, kPositions)
      .index_select(kPositions, at::tensor(shards.restore(), at::kLong));
}

}  // namespace split_sequences_detail

Json split_sequences(const Json& input) {
  using namespace split_sequences_detail;
  const int num_ranks = input.at("num_processes");
  const std::int64_t seed = input.at("seed");
  const std::vector<std::int64_t> shape{
      input.at("batch"),
      input.at("heads"),
      input.at("length"),
      input.at("size")};
  const SequenceShards shards(
      input.at("length"),
      num_ranks,
      input.at("load_balance") == true ? SequenceCut::zigzag
                                       : SequenceCut::contiguous);
  const SequenceAttentionOptions options{
      .is_causal = input.at("is_causal"),
      .rotation = input.at("rotate_method") == "alltoall"
          ? KeyValueRotation::alltoall
          : KeyValueRotation::allgather};
  std::vector<RankOutcome> ranks(static_cast<std::size_t>(num_ranks));
  testing::run_in_worlds(num_ranks, [&](const World& world) {
    RankOutcome& outcome = ranks[static_cast<std::size_t>(world.rank())];
    outcome.positions = shards.positions(world.rank());
    const at::Tensor index = at::tensor(outcome.positions, at::kLong);
    std::vector<at::Tensor> leaves;
    for (std::int64_t i = 0; i < 3; ++i) {
      leaves.push_back(values(shape, seed + i)
                           .index_select(kPositions, index)
                           .requires_grad_(true));
    }
    const at::Tensor output = ring_attention(
        leaves[0], leaves[1], leaves[2], world.group(), shards, options);
    const at::Tensor weights =
        values(shape, seed + 3).index_select(kPositions, index);
    (output * weights).sum().backward();
    outcome.output = output.detach();
    for (const at::Tensor& leaf : leaves)
      outcome.gradients.push_back(leaf.grad());
  });
  Json of_ranks = Json::array();
  for (const RankOutcome& rank : ranks) {
    of_ranks.push_back(
        {{"positions", rank.positions},
         {"local_output", write_tensor(rank.output)}});
  }
  const at::Tensor output = merged(
      ranks, shards, [](const RankOutcome& rank) { return rank.output; });
  Json gradients;
  const char* const names[] = {"q", "k", "v"};
  for (std::size_t i = 0; i < 3; ++i) {
    gradients[names[i]] =
        write_tensor(merged(ranks, shards, [&](const RankOutcome& rank) {
          return rank.gradients[i];
        }));
  }
  return {
      {"ranks", std::move(of_ranks)},
      {"loss", (output * values(shape, seed + 3)).sum().item<double>()},
      {"output", write_tensor(output)},
      {"gradients", std::move(gradients)},
      {"restored", true}};
}

}  // namespace accelerate::oracle::topic_parallelism
