// Metrics over prepared loaders count each sample once.
#include <cstdint>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace metrics_of_loaders_test {

using testing::run_on_ranks;

auto numbers(std::int64_t size) { return TensorDataset{torch::arange(size)}; }

// Returns 0 + 1 + ... + (size - 1).
double sum_below(std::int64_t size) {
  return static_cast<double>(size * (size - 1) / 2);
}

TEST(MetricsOfLoaders, CountEachSampleOnce) {
  for (const int num_ranks : {1, 2, 3}) {
    for (const std::int64_t size : {1, 7, 12, 13}) {
      for (const bool even_batches : {true, false}) {
        for (const bool dispatch_batches : {false, true}) {
          // Dispatched rounds are always even.
          if (dispatch_batches && !even_batches) continue;
          run_on_ranks(num_ranks, [&](const WorldOptions& world) {
            const Accelerator accelerator({.world = world});
            auto loader = accelerator.prepare(DataLoader(
                numbers(size),
                {.batch_size = 2,
                 .even_batches = even_batches,
                 .dispatch_batches = dispatch_batches}));
            Sum sum(accelerator);
            Mean mean(accelerator);
            for (auto& [values] : loader) {
              sum.update(values);
              mean.update(values.to(torch::kBFloat16));
            }
            EXPECT_EQ(sum.compute(), sum_below(size))
                << size << " samples on " << num_ranks << " ranks";
            EXPECT_EQ(
                mean.compute(), sum_below(size) / static_cast<double>(size));
          });
        }
      }
    }
  }
}

TEST(MetricsOfLoaders, ContinueFromACheckpointOnMoreRanks) {
  const testing::TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "checkpoint";
  const auto metrics_of = [&](int num_ranks, const auto& use) {
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      Sum sum(accelerator);
      AUROC auroc(accelerator);
      accelerator.register_for_checkpointing(sum, auroc);
      use(accelerator, sum, auroc);
    });
  };
  metrics_of(2, [&](const Accelerator& accelerator, Sum& sum, AUROC& auroc) {
    sum.update(1 + accelerator.process_index());
    auroc.update(
        torch::tensor({0.5, 0.25}),
        torch::full({2}, accelerator.process_index(), torch::kLong));
    accelerator.save_state(path);
  });
  metrics_of(3, [&](const Accelerator& accelerator, Sum& sum, AUROC& auroc) {
    accelerator.load_state(path);
    EXPECT_EQ(sum.compute(), 3);
    EXPECT_EQ(auroc.compute(), 0.5);
    sum.update(1);
    EXPECT_EQ(sum.compute(), 6);
  });
}

TEST(MetricsOfLoaders, AreShownByABar) {
  const Accelerator accelerator({.world = {.rank = 0, .size = 1}});
  auto loader = accelerator.prepare(DataLoader(numbers(5), {.batch_size = 2}));
  auto bar = accelerator.progress(loader, {.disable = true});
  Sum sum(accelerator);
  for (auto& [values] : bar) sum.update(values);
  EXPECT_EQ(bar.count(), 3);
  EXPECT_EQ(sum.compute(), 10);
}

}  // namespace metrics_of_loaders_test
}  // namespace accelerate
