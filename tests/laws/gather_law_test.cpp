// What gather_for_metrics gives over a pass is the dataset, each sample once.
#include "laws/check.h"

#include <algorithm>
#include <array>
#include <memory>

#include <accelerate/accelerate.h>

#include "support/rank_pool.h"

namespace accelerate {
namespace {

using testing::expect_law;
using testing::RankPool;

struct Case {
  std::int64_t num_samples;
  std::int64_t batch_size;
  bool drop_last;
  bool split_batches;
  bool shuffle;
  std::uint64_t seed;
  bool as_objects;
};

std::string name_of(std::int64_t sample) {
  return std::string("s").append(std::to_string(sample));
}

template <class T>
std::vector<T> sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

TEST(GatherLaw, GivesTheDataSetExactly) {
  constexpr int kMaxRanks = 4;
  std::array<std::unique_ptr<RankPool<Accelerator>>, kMaxRanks> pools;
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    pools[static_cast<std::size_t>(ranks - 1)] = std::make_unique<RankPool<Accelerator>>(
        ranks, [](const WorldOptions& world) { return Accelerator({.world = world}); });
  }
  expect_law(10'000, [&] {
    const int ranks = *rc::gen::inRange(1, kMaxRanks + 1);
    Case how{
        .num_samples = *rc::gen::inRange<std::int64_t>(0, 33),
        .batch_size = *rc::gen::inRange<std::int64_t>(1, 9),
        .drop_last = *rc::gen::arbitrary<bool>(),
        .split_batches = *rc::gen::arbitrary<bool>(),
        .shuffle = *rc::gen::arbitrary<bool>(),
        .seed = *rc::gen::arbitrary<std::uint64_t>(),
        .as_objects = *rc::gen::arbitrary<bool>()};
    if (how.split_batches) how.batch_size *= ranks;
    std::vector<std::vector<std::int64_t>> gathered(static_cast<std::size_t>(ranks));
    pools[static_cast<std::size_t>(ranks - 1)]->run([&](Accelerator& accelerator) {
      const auto rank = static_cast<std::size_t>(accelerator.process_index());
      auto loader = accelerator.prepare(DataLoader(
          TensorDataset{torch::arange(how.num_samples)},
          {.batch_size = how.batch_size,
           .shuffle = how.shuffle,
           .drop_last = how.drop_last,
           .split_batches = how.split_batches,
           .data_seed = how.seed}));
      for (auto& [samples] : loader) {
        if (how.as_objects) {
          std::vector<std::string> names;
          for (std::int64_t i = 0; i < samples.size(0); ++i) {
            names.push_back(name_of(samples[i].template item<std::int64_t>()));
          }
          for (const std::string& name : accelerator.gather_for_metrics(names)) {
            gathered[rank].push_back(std::stoll(name.substr(1)));
          }
          continue;
        }
        // Of another shape and dtype than the batch.
        const at::Tensor all = accelerator.gather_for_metrics(
            samples.to(torch::kDouble).view({-1, 1, 1}).expand({-1, 2, 1}));
        for (std::int64_t i = 0; i < all.size(0); ++i) {
          gathered[rank].push_back(static_cast<std::int64_t>(all[i][1][0].template item<double>()));
        }
      }
    });
    const std::int64_t round = how.split_batches ? how.batch_size : how.batch_size * ranks;
    const std::int64_t whole =
        how.drop_last ? how.num_samples / round * round : how.num_samples;
    for (const auto& of_rank : gathered) RC_ASSERT(of_rank == gathered[0]);
    const std::vector<std::int64_t> seen = sorted(gathered[0]);
    RC_ASSERT(static_cast<std::int64_t>(seen.size()) == whole);
    RC_ASSERT(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    if (!how.drop_last || !how.shuffle) {
      for (std::int64_t i = 0; i < whole; ++i) {
        RC_ASSERT(seen[static_cast<std::size_t>(i)] == i);
      }
    }
    if (!how.shuffle) RC_ASSERT(gathered[0] == seen);
  });
}

}  // namespace
}  // namespace accelerate
