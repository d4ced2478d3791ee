// A loader that was stopped at any point resumes exactly there, on any number
// of ranks.
#include <numeric>

#include <rapidcheck.h>

#include <accelerate/data_loader.h>
#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate {
namespace resume_test {

using testing::expect_error;
using Loader = DataLoader<TensorDataset<1>>;

struct Ranks {
  std::vector<std::unique_ptr<Loader>> loaders;

  Ranks(std::int64_t num_samples, DataLoaderOptions options, int count) {
    for (int rank = 0; rank < count; ++rank) {
      loaders.push_back(std::make_unique<Loader>(
          TensorDataset{torch::arange(num_samples)}, options));
      detail::LoaderContext context;
      context.batch_rank = rank;
      context.batch_count = count;
      context.seed = 77;
      loaders.back()->attach(std::move(context));
    }
  }

  // Returns the samples of all ranks, round by round, of a pass that stops
  // after `num_rounds`. Sets `state` to the state of rank 0.
  std::vector<std::int64_t> read(std::int64_t num_rounds, StateDict& state) {
    std::vector<std::vector<std::vector<std::int64_t>>> batches(loaders.size());
    for (std::size_t rank = 0; rank < loaders.size(); ++rank) {
      Loader& loader = *loaders[rank];
      std::int64_t round = 0;
      for (auto& [x] : loader) {
        auto& batch = batches[rank].emplace_back();
        for (std::int64_t i = 0; i < x.size(0); ++i)
          batch.push_back(x[i].item<std::int64_t>());
        if (rank == 0) state = loader.state_dict();
        if (++round == num_rounds) break;
      }
    }
    std::vector<std::int64_t> all;
    for (std::size_t round = 0;; ++round) {
      bool is_any = false;
      for (const auto& of_rank : batches) {
        if (round >= of_rank.size()) continue;
        is_any = true;
        all.insert(all.end(), of_rank[round].begin(), of_rank[round].end());
      }
      if (!is_any) return all;
    }
  }
};

TEST(Resume, JoinsToTheUninterruptedStreamOnAnyNumberOfRanks) {
  EXPECT_TRUE(rc::check([] {
    const auto size = *rc::gen::inRange<std::int64_t>(1, 60);
    const auto batch_size = *rc::gen::inRange<std::int64_t>(1, 6);
    const auto before = *rc::gen::inRange(1, 5);
    const auto after = *rc::gen::inRange(1, 5);
    const auto epoch = *rc::gen::inRange<std::uint64_t>(0, 3);
    const DataLoaderOptions options{
        .batch_size = batch_size,
        .shuffle = *rc::gen::arbitrary<bool>(),
        .even_batches = false};
    StateDict unused;
    Ranks whole(size, options, 1);
    whole.loaders[0]->set_epoch(epoch);
    const auto uninterrupted = whole.read(1000, unused);
    const auto next_epoch = whole.read(1000, unused);

    Ranks first(size, options, before);
    for (auto& loader : first.loaders) loader->set_epoch(epoch);
    const std::int64_t num_rounds = *rc::gen::inRange<std::int64_t>(
        1, (size + batch_size * before - 1) / (batch_size * before) + 1);
    StateDict state;
    auto joined = first.read(num_rounds, state);

    Ranks second(size, options, after);
    for (auto& loader : second.loaders) loader->load_state_dict(state);
    const bool has_ended = static_cast<std::int64_t>(joined.size()) == size;
    if (!has_ended) {
      const auto rest = second.read(1000, unused);
      joined.insert(joined.end(), rest.begin(), rest.end());
    }
    RC_ASSERT(joined == uninterrupted);
    // The epoch after a resumed one is complete.
    RC_ASSERT(second.read(1000, unused) == next_epoch);
  }));
}

TEST(Resume, KeepsCountingInARestoredPass) {
  StateDict state;
  Ranks first(20, {.batch_size = 2, .shuffle = true}, 2);
  const auto head = first.read(2, state);
  Ranks second(20, {.batch_size = 2, .shuffle = true}, 2);
  for (auto& loader : second.loaders) loader->load_state_dict(state);
  EXPECT_EQ(second.loaders[0]->size(), 3);
  const auto middle = second.read(1, state);
  EXPECT_EQ(state.get<std::int64_t>("position"), 12);
  EXPECT_EQ(state.get<std::int64_t>("epoch"), 0);
}

class Numbers {
 public:
  std::optional<std::tuple<torch::Tensor>> next() {
    if (next_ == 9) return std::nullopt;
    return std::tuple{torch::tensor(next_++)};
  }
  void reset() { next_ = 0; }

 private:
  std::int64_t next_ = 0;
};

TEST(Resume, ReadsAStreamUpToItsPlace) {
  DataLoader first(Numbers(), {.batch_size = 2});
  StateDict state;
  for (auto& [x] : first) {
    state = first.state_dict();
    if (x[0].item<std::int64_t>() == 2) break;
  }
  DataLoader second(Numbers(), {.batch_size = 2});
  second.load_state_dict(state);
  std::vector<std::int64_t> seen;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [x] : second) seen.push_back(x[0].item<std::int64_t>());
  }
  EXPECT_EQ(seen, (std::vector<std::int64_t>{4, 6, 8, 0, 2, 4, 6, 8}));
}

TEST(Resume, RefusesInvalidStates) {
  Loader loader(TensorDataset{torch::arange(4)});
  expect_error<CheckpointError>(
      [&] { loader.load_state_dict(StateDict()); }, "epoch");
  expect_error<CheckpointError>(
      [&] {
        loader.load_state_dict(
            {{"epoch", std::int64_t{-1}},
             {"position", std::int64_t{0}},
             {"seed", std::int64_t{0}}});
      },
      "least 0");
  for (auto& batch : loader) {
    static_cast<void>(batch);
    expect_error<ConfigError>(
        [&] { loader.load_state_dict(loader.state_dict()); }, "inside a pass");
    break;
  }
}

}  // namespace resume_test
}  // namespace accelerate
