// Outputs for divided sequences, gathered again for metrics.
#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace gathered_sequences_test {

using testing::expect_error;
using testing::run_on_ranks;
using torch::Tensor;

// Words as samples x time; replica r has samples 2 r and 2 r + 1.
Tensor words(std::int64_t length) {
  return torch::arange(4 * length).view({4, length});
}

TEST(GatheredSequences, AreThoseOfAllSamplesInOrder) {
  for (const int context : {1, 2, 3}) {
    for (const std::int64_t length : {12, 7}) {
      for (const SequenceCut cut :
           {SequenceCut::contiguous, SequenceCut::zigzag}) {
        run_on_ranks(2 * context, [&](const WorldOptions& world) {
          const Accelerator accelerator(
              {.parallel = {.replicate = 2, .context = context},
               .world = world});
          const Tensor mine =
              words(length)
                  .narrow(0, 2 * accelerator.mesh().batch_rank(), 2)
                  .clone();
          const ContextParallelScope sequence =
              accelerator.maybe_context_parallel(
                  {mine}, {1}, {}, {.cut = cut, .pad_values = {-1}});
          const Tensor scores =
              torch::stack({mine.to(torch::kFloat), mine * 2.0}, -1)
                  .requires_grad_();
          const Tensor whole = sequence.gather(scores, 1);
          EXPECT_FALSE(whole.requires_grad());
          EXPECT_TRUE(torch::equal(whole, sequence.gather(scores, -2)));
          const Tensor all = accelerator.gather_for_metrics(whole);
          const Tensor expected = words(length).to(torch::kFloat);
          EXPECT_TRUE(
              torch::equal(all, torch::stack({expected, expected * 2}, -1)));
        });
      }
    }
  }
}

TEST(GatheredSequences, RefuseOtherTensors) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    const ContextParallelScope sequence =
        accelerator.maybe_context_parallel({}, {}, {}, {.sequence_length = 8});
    expect_error<ConfigError>(
        [&] { (void)sequence.gather(torch::ones({4}), 1); },
        "gather() got a tensor of shape [4], and dimension 1 of it");
    expect_error<ConfigError>(
        [&] { (void)sequence.gather(torch::ones({3}), 0); }, "3 positions");
  });
}

}  // namespace gathered_sequences_test
}  // namespace accelerate
