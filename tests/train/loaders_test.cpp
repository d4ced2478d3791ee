// Loaders prepared by an Accelerator: defaults, generators, nesting.
#include <accelerate/accelerate.h>

#include "comm/group/group_impl.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace loaders_test {

using testing::expect_error;
using testing::run_on_ranks;
using Values = std::vector<std::int64_t>;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

DataLoader<TensorDataset<1>> numbers(
    std::int64_t count,
    const DataLoaderOptions& options) {
  return DataLoader(TensorDataset{torch::arange(count)}, options);
}

template <class Loader>
Values read(Loader& loader) {
  Values all;
  for (auto& [x] : loader) {
    for (const double value : listify(x))
      all.push_back(static_cast<std::int64_t>(value));
  }
  return all;
}

TEST(DataloaderConfig, IsTheDefaultOfLoadersThatLeaveAnOptionUnset) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const bool is_main = *world.rank == 0;
    const Accelerator accelerator(
        {.dataloader_config =
             {.split_batches = true,
              .even_batches = false,
              .use_seedable_sampler = true,
              .data_seed = 42,
              .non_blocking = true},
         .world = world});
    auto split = accelerator.prepare(numbers(5, {.batch_size = 4}));
    EXPECT_EQ(read(split), is_main ? (Values{0, 1, 4}) : (Values{2, 3}));
    EXPECT_EQ(split.total_batch_size(), 4);
    EXPECT_EQ(split.options().split_batches, true);
    EXPECT_EQ(split.options().non_blocking, true);
    auto own = accelerator.prepare(numbers(
        5, {.batch_size = 2, .split_batches = false, .even_batches = true}));
    EXPECT_EQ(read(own), is_main ? (Values{0, 1, 4, 0}) : (Values{2, 3, 1, 2}));
    // Accelerate's order for this seed is 2 6 1 8 4 5 0 9 3 7.
    auto shuffled =
        accelerator.prepare(numbers(10, {.batch_size = 2, .shuffle = true}));
    EXPECT_EQ(
        read(shuffled),
        is_main ? (Values{2, 1, 4, 0, 3}) : (Values{6, 8, 5, 9, 7}));
  });
}

TEST(DataloaderConfig, IsChangedForLoadersPreparedAfterwards) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const bool is_main = *world.rank == 0;
    const Accelerator accelerator({.world = world});
    EXPECT_TRUE(accelerator.dataloader_config().even_batches);
    EXPECT_FALSE(accelerator.dataloader_config().split_batches);
    EXPECT_FALSE(accelerator.dataloader_config().use_seedable_sampler);
    EXPECT_FALSE(accelerator.dataloader_config().non_blocking);
    EXPECT_TRUE(accelerator.dataloader_config().use_stateful_dataloader);
    EXPECT_EQ(accelerator.dataloader_config().dispatch_batches, std::nullopt);
    auto before = accelerator.prepare(numbers(3, {}));
    accelerator.dataloader_config().even_batches = false;
    EXPECT_FALSE(accelerator.dataloader_config().even_batches);
    auto after = accelerator.prepare(numbers(3, {}));
    EXPECT_EQ(read(before), is_main ? (Values{0, 2}) : (Values{1, 0}));
    EXPECT_EQ(read(after), is_main ? (Values{0, 2}) : (Values{1}));

    accelerator.dataloader_config() = DataLoaderConfiguration();
    accelerator.dataloader_config().dispatch_batches = true;
    auto dispatched =
        accelerator.prepare(numbers(is_main ? 3 : 0, {.batch_size = 1}));
    EXPECT_EQ(read(dispatched), is_main ? (Values{0, 2}) : (Values{1, 0}));
    accelerator.dataloader_config().use_seedable_sampler = true;
    accelerator.dataloader_config().non_blocking = true;
    EXPECT_EQ(accelerator.dataloader_config().dispatch_batches, true);
    EXPECT_TRUE(accelerator.dataloader_config().use_seedable_sampler);
    EXPECT_TRUE(accelerator.dataloader_config().non_blocking);
  });
}

TEST(DataloaderConfig, RefusesUnevenRoundsThatRankZeroDealsOut) {
  for (const int num_ranks : {1, 2}) {
    run_on_ranks(num_ranks, [](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      const auto prepare = [&](const DataLoaderOptions& options) {
        accelerator.prepare(numbers(3, options));
      };
      constexpr const char* kPhrase =
          "dispatch_batches cuts every round evenly";
      expect_error<ConfigError>(
          [&] { prepare({.even_batches = false, .dispatch_batches = true}); },
          kPhrase);
      accelerator.dataloader_config().even_batches = false;
      expect_error<ConfigError>(
          [&] { prepare({.dispatch_batches = true}); }, kPhrase);
      prepare({.drop_last = true, .dispatch_batches = true});
      prepare({.even_batches = true, .dispatch_batches = true});
    });
  }
}

struct Counting {
  std::optional<std::tuple<torch::Tensor>> next() {
    if (at == 5) return std::nullopt;
    return std::tuple{torch::tensor(at++)};
  }
  void reset() { at = 0; }
  std::int64_t at = 0;
};

TEST(DataloaderConfig, LetsEachRankReadAStreamIfBatchesMayBeUneven) {
  std::vector<Values> seen(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto loader =
        accelerator.prepare(DataLoader(Counting(), {.even_batches = false}));
    seen[static_cast<std::size_t>(*world.rank)] = read(loader);
  });
  EXPECT_EQ(seen[0], (Values{0, 2, 4}));
  EXPECT_EQ(seen[1], (Values{1, 3}));
}

TEST(DataloaderConfig, WarnsOnceThatJoinLeavesDispatchedRoundsEven) {
  std::atomic<int> num_warnings = 0;
  run_on_ranks(2, [&](WorldOptions world) {
    world.logger = Logger(
        [&](const LogRecord& record) {
          num_warnings += static_cast<int>(
              record.message.find("cut every round evenly") !=
              std::string_view::npos);
        },
        LogLevel::warning);
    const Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(numbers(3, {.dispatch_batches = true}));
    accelerator.join_uneven_inputs(
        [&] {
          EXPECT_EQ(read(loader).size(), 2U);
          EXPECT_EQ(read(loader).size(), 2U);
        },
        {.even_batches = false});
  });
  EXPECT_EQ(num_warnings, 1);
}

TEST(DataloaderConfig, LeavesPositionsOutOfCheckpointsOnRequest) {
  const testing::TemporaryDirectory directory;
  for (const bool is_stateful : {true, false}) {
    const auto path = directory.path() / (is_stateful ? "with" : "without");
    const AcceleratorOptions options{
        .dataloader_config = {.use_stateful_dataloader = is_stateful},
        .world = alone()};
    {
      const Accelerator accelerator(options);
      auto loader = accelerator.prepare(numbers(4, {}));
      for (auto& [x] : loader) {
        if (x.template item<std::int64_t>() < 1) continue;
        accelerator.save_state(path);
        break;
      }
    }
    const Accelerator accelerator(options);
    auto loader = accelerator.prepare(numbers(4, {}));
    accelerator.load_state(path);
    EXPECT_EQ(
        read(loader), is_stateful ? (Values{2, 3}) : (Values{0, 1, 2, 3}));
  }
}

std::int64_t num_collectives(const Accelerator& accelerator) {
  return static_cast<std::int64_t>(
      accelerator.world().group().impl()->sequence.load());
}

TEST(RngTypes, AreSynchronisedWhenAPassBegins) {
  for (const bool synchronises : {true, false}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.rng_types = synchronises
               ? std::vector{RNGType::torch, RNGType::cuda, RNGType::generator}
               : std::vector{RNGType::generator},
           .world = world});
      auto loader = accelerator.prepare(numbers(4, {}));
      const std::int64_t before = num_collectives(accelerator);
      EXPECT_EQ(read(loader).size(), 2U);
      EXPECT_EQ(read(loader).size(), 2U);
      // The CPU's generator once per pass; there is no other device.
      EXPECT_EQ(num_collectives(accelerator) - before, synchronises ? 2 : 0);
    });
  }
}

TEST(RngTypes, AreRefusedWhereRanksMayHaveEnded) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.rng_types = {RNGType::torch}, .world = world});
    auto loader = accelerator.prepare(numbers(4, {}));
    expect_error<ConfigError>(
        [&] { accelerator.join_uneven_inputs([&] { read(loader); }); },
        "rng_types synchronises generators");
  });
  const World world(alone());
  expect_error<ConfigError>(
      [&] { synchronize_rng_states(world, {RNGType::generator}); },
      "call synchronize_rng_state");
}

TEST(NestedPasses, AreAnErrorThatLeavesTheOuterOneAlone) {
  const Accelerator accelerator({.world = alone()});
  auto loader = accelerator.prepare(numbers(3, {}));
  Values seen;
  for (auto& [x] : loader) {
    seen.push_back(x.item<std::int64_t>());
    expect_error<ConfigError>(
        [&] { read(loader); },
        "inside another pass over it, which is in epoch 0 after " +
            std::to_string(seen.size()) + " batches");
  }
  EXPECT_EQ(seen, (Values{0, 1, 2}));
  EXPECT_EQ(read(loader), (Values{0, 1, 2}));
}

TEST(NestedPasses, MayFollowAnEndedOneWhoseIteratorLives) {
  DataLoader loader = numbers(2, {});
  auto ended = loader.begin();
  while (ended != loader.end()) ++ended;
  ++ended;
  EXPECT_EQ(loader.epoch(), 1U);
  EXPECT_EQ(read(loader), (Values{0, 1}));
}

TEST(PrepareDataLoader, TakesLoadersOfBothKinds) {
  const Accelerator accelerator({.world = alone()});
  auto loader = accelerator.prepare_data_loader(
      numbers(3, {.device_placement = true}), {.device_placement = false});
  EXPECT_EQ(loader.options().device_placement, false);
  EXPECT_EQ(read(loader), (Values{0, 1, 2}));
  EXPECT_EQ(read(loader), (Values{0, 1, 2}));
  auto skipped = accelerator.skip_first_batches(loader, 2);
  EXPECT_EQ(read(skipped), (Values{2}));
}

}  // namespace loaders_test
}  // namespace accelerate
