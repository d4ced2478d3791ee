// gather_for_metrics over a pass gives the dataset, each sample once.
#include "laws/check.h"

#include <algorithm>
#include <array>
#include <memory>

#include <accelerate/accelerate.h>

#include "support/rank_pool.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace gather_law_test {

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
  bool is_stream;
  bool is_dispatched;
  std::int64_t num_skipped;
};

class Stream {
 public:
  explicit Stream(std::int64_t size) : size_(size) {}
  std::optional<std::tuple<at::Tensor>> next() {
    if (next_ == size_) return std::nullopt;
    return std::tuple{torch::tensor(next_++)};
  }
  void reset() { next_ = 0; }

 private:
  std::int64_t size_;
  std::int64_t next_ = 0;
};

std::string name_of(std::int64_t sample) {
  return std::string("s").append(std::to_string(sample));
}

template <class T>
std::vector<T> sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

// Gathers everything in a pass, in batches of another shape and dtype, or as
// strings.
template <class Loader>
std::vector<std::int64_t>
gather_all(const Accelerator& accelerator, Loader loader, const Case& setup) {
  std::vector<std::int64_t> gathered;
  for (auto& [samples] : skip_first_batches(loader, setup.num_skipped)) {
    if (setup.as_objects) {
      std::vector<std::string> names;
      for (std::int64_t i = 0; i < samples.size(0); ++i) {
        names.push_back(name_of(samples[i].template item<std::int64_t>()));
      }
      for (const std::string& name : accelerator.gather_for_metrics(names)) {
        gathered.push_back(std::stoll(name.substr(1)));
      }
      continue;
    }
    const at::Tensor all = accelerator.gather_for_metrics(
        samples.to(torch::kDouble).view({-1, 1, 1}).expand({-1, 2, 1}));
    for (std::int64_t i = 0; i < all.size(0); ++i) {
      gathered.push_back(
          static_cast<std::int64_t>(all[i][1][0].template item<double>()));
    }
  }
  return gathered;
}

TEST(GatherLaw, GivesTheDataSetExactly) {
  constexpr int kMaxRanks = 4;
  std::array<std::unique_ptr<RankPool<Accelerator>>, kMaxRanks> pools;
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    pools[static_cast<std::size_t>(ranks - 1)] =
        std::make_unique<RankPool<Accelerator>>(
            ranks, [](const WorldOptions& world) {
              return Accelerator({.world = world});
            });
  }
  expect_law(testing::ranks_connect_as_threads() ? 10'000 : 2'000, [&] {
    const int ranks = *rc::gen::inRange(1, kMaxRanks + 1);
    Case setup{
        .num_samples = *rc::gen::inRange<std::int64_t>(0, 33),
        .batch_size = *rc::gen::inRange<std::int64_t>(1, 9),
        .drop_last = *rc::gen::arbitrary<bool>(),
        .split_batches = *rc::gen::arbitrary<bool>(),
        .shuffle = *rc::gen::arbitrary<bool>(),
        .seed = *rc::gen::arbitrary<std::uint64_t>(),
        .as_objects = *rc::gen::arbitrary<bool>(),
        .is_stream = *rc::gen::arbitrary<bool>(),
        .is_dispatched = *rc::gen::arbitrary<bool>(),
        .num_skipped =
            *rc::gen::weightedElement<std::int64_t>({{3, 0}, {1, 1}, {1, 2}})};
    if (setup.is_stream) setup.shuffle = false;
    if (setup.split_batches) setup.batch_size *= ranks;
    std::vector<std::vector<std::int64_t>> gathered(
        static_cast<std::size_t>(ranks));
    pools[static_cast<std::size_t>(ranks - 1)]->run(
        [&](Accelerator& accelerator) {
          const auto rank =
              static_cast<std::size_t>(accelerator.process_index());
          const DataLoaderOptions options{
              .batch_size = setup.batch_size,
              .shuffle = setup.shuffle,
              .drop_last = setup.drop_last,
              .split_batches = setup.split_batches,
              .dispatch_batches = setup.is_dispatched,
              .data_seed = setup.seed};
          if (setup.is_stream) {
            gathered[rank] = gather_all(
                accelerator,
                accelerator.prepare(
                    DataLoader(Stream(setup.num_samples), options)),
                setup);
          } else {
            gathered[rank] = gather_all(
                accelerator,
                accelerator.prepare(DataLoader(
                    TensorDataset{torch::arange(setup.num_samples)}, options)),
                setup);
          }
        });
    const std::int64_t round =
        setup.split_batches ? setup.batch_size : setup.batch_size * ranks;
    const std::int64_t total =
        setup.drop_last ? setup.num_samples / round * round : setup.num_samples;
    const std::int64_t first = std::min(setup.num_skipped * round, total);
    for (const auto& of_rank : gathered) RC_ASSERT(of_rank == gathered[0]);
    const std::vector<std::int64_t> seen = sorted(gathered[0]);
    RC_ASSERT(static_cast<std::int64_t>(seen.size()) == total - first);
    RC_ASSERT(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    if (!setup.shuffle || total - first == setup.num_samples) {
      for (std::size_t i = 0; i < seen.size(); ++i) {
        RC_ASSERT(seen[i] == first + static_cast<std::int64_t>(i));
      }
    }
    if (!setup.shuffle) RC_ASSERT(gathered[0] == seen);
  });
}

}  // namespace gather_law_test
}  // namespace accelerate
