// How much memory ring attention holds at once, in blocks; a block is the keys,
// or the values, of one rank. The working memory of LibTorch's kernels counts,
// too.
#include <accelerate/attention.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "parallel/attention/attention_layers.h"
#include "support/run_on_ranks.h"
#include "train/memory/counted_allocations.h"

namespace accelerate {
namespace ring_memory_test {

using testing::ranks_connect_as_threads;
using testing::run_in_worlds;

constexpr int kRanks = 4;
constexpr std::int64_t kHeads = 4, kSize = 32, kLocal = 1024;
constexpr double kBlock = 4.0 * kHeads * kLocal * kSize;

/// Size of this thread's live tensors, and their peak, in blocks.
class Peak final : public detail::AllocationListener {
 public:
  void allocated(const void* memory, std::size_t num_bytes) override {
    sizes_.emplace(memory, num_bytes);
    living_ += static_cast<double>(num_bytes);
    peak_ = std::max(peak_, living_);
  }
  void released(const void* memory) override {
    const auto found = sizes_.find(memory);
    living_ -= static_cast<double>(found->second);
    sizes_.erase(found);
  }
  void forget() { peak_ = living_; }
  [[nodiscard]] double living() const { return living_ / kBlock; }
  [[nodiscard]] double peak() const { return peak_ / kBlock; }

 private:
  std::unordered_map<const void*, std::size_t> sizes_;
  double living_ = 0, peak_ = 0;
};

struct Held {
  double in_forward = 0;
  double until_backward = 0;
  double in_backward = 0;
};

// The most that a rank holds. As in a transformer, queries, keys and values are
// views of one layer's output, and another layer takes the result.
Held held_by(const SequenceAttentionOptions& options) {
  Held held;
  std::mutex mutex;
  run_in_worlds(kRanks, [&](const World& world) {
    const SequenceShards shards(kRanks * kLocal, kRanks);
    const at::Tensor projected =
        torch::randn({1, kLocal, 3 * kHeads * kSize}).requires_grad_();
    const at::Tensor weight = torch::ones({1, kHeads * kSize});
    const auto peak = std::make_shared<Peak>();
    const detail::CountedAllocations counted(peak);
    at::Tensor loss;
    double in_forward = 0;
    {
      std::vector<at::Tensor> inputs;
      for (const at::Tensor& part : projected.chunk(3, -1))
        inputs.push_back(part.unflatten(-1, {-1, kSize}).transpose(1, 2));
      const at::Tensor output = ring_attention(
          inputs[0], inputs[1], inputs[2], world.group(), shards, options);
      in_forward = peak->peak();
      loss = at::linear(output.transpose(1, 2).flatten(-2), weight).sum();
    }
    peak->forget();
    const double before = peak->living();
    loss.backward();
    const std::lock_guard lock(mutex);
    held.in_forward = std::max(held.in_forward, in_forward);
    held.until_backward = std::max(held.until_backward, before);
    held.in_backward = std::max(held.in_backward, peak->peak() - before);
  });
  return held;
}

// The most that a rank holds in an unmodified MultiheadAttention: queries, keys
// and values in one tensor, and what the ring holds in addition.
Held held_by_module() {
  Held held;
  std::mutex mutex;
  run_in_worlds(kRanks, [&](const World& world) {
    constexpr std::int64_t kWidth = kHeads * kSize;
    torch::nn::MultiheadAttention attention(kWidth, kHeads);
    const auto layers = std::make_shared<detail::AttentionLayers>();
    layers->watch("attention", *attention);
    const SequenceShards shards(kRanks * kLocal, kRanks);
    const detail::AttentionScope scope(
        {world.group(), shards, false, KeyValueRotation::alltoall});
    const at::Tensor x = torch::randn({kLocal, 1, kWidth}).requires_grad_();
    const auto peak = std::make_shared<Peak>();
    const detail::CountedAllocations counted(peak);
    at::Tensor output = std::get<0>(attention->forward(x, x, x));
    const std::lock_guard lock(mutex);
    held.in_forward = std::max(held.in_forward, peak->peak());
    held.until_backward = std::max(held.until_backward, peak->living());
  });
  return held;
}

// Each thread of LibTorch's kernel computes scores of 256 queries and 512 keys
// at a time, and in backward their gradients, too.
double scores() { return at::get_num_threads() * 4.0 * 256 * 512 / kBlock; }
// Sums of exponentials and values derived from them: a few numbers per query.
constexpr double kNumbersPerQuery = 0.3;

TEST(RingMemory, HoldsTwoBlocksAndNoSecondOutput) {
  if (ranks_connect_as_threads())
    GTEST_SKIP() << "its messages are copies, which count as a rank's tensors";
  for (const bool is_causal : {false, true}) {
    SCOPED_TRACE(is_causal);
    const Held held = held_by(
        {.is_causal = is_causal, .rotation = KeyValueRotation::alltoall});
    // Keys and values: this rank's while they are sent, one rank's, the next
    // rank's. Outputs: the output so far, and one block's.
    EXPECT_LE(held.in_forward, 6 + 2 + scores() + kNumbersPerQuery);
    // The next layer keeps the output as it is.
    EXPECT_LE(held.until_backward, 1 + kNumbersPerQuery);
    // Keys and values as in forward. Their gradients: this rank's sums, those
    // just computed, those in flight to their owner, those from another rank.
    // Gradients of the output and of queries: summed, and just computed.
    EXPECT_LE(held.in_backward, 6 + 8 + 3 + 2 * scores() + kNumbersPerQuery);
  }
}

// The matrix of scores would be 128 blocks.
TEST(RingMemory, HoldsTwoBlocksInAnUnmodifiedModule) {
  if (ranks_connect_as_threads())
    GTEST_SKIP() << "its messages are copies, which count as a rank's tensors";
  const Held held = held_by_module();
  // The projections, and the ring's blocks as above.
  EXPECT_LE(held.in_forward, 3 + 6 + 2 + scores() + kNumbersPerQuery);
  // The projections, the heads' output, and the last layer's output.
  EXPECT_LE(held.until_backward, 3 + 1 + 1 + kNumbersPerQuery);
}

}  // namespace ring_memory_test
}  // namespace accelerate
