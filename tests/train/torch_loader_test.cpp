// Prepared torch::data loaders.
#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace torch_loader_test {

using testing::expect_error;
using testing::run_on_ranks;
using Values = std::vector<std::int64_t>;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

struct Numbers : torch::data::datasets::Dataset<Numbers> {
  explicit Numbers(std::size_t count) : count_(count) {}
  torch::data::Example<> get(std::size_t i) override {
    return {torch::full({}, static_cast<std::int64_t>(i)), torch::zeros({})};
  }
  [[nodiscard]] std::optional<std::size_t> size() const override {
    return count_;
  }
  std::size_t count_;
};

template <class Sampler = torch::data::samplers::RandomSampler>
auto numbers(std::size_t count, torch::data::DataLoaderOptions options) {
  return torch::data::make_data_loader<Sampler>(
      Numbers(count).map(torch::data::transforms::Stack<>()), options);
}

void append(Values& values, const torch::Tensor& tensor) {
  for (const double value : listify(tensor))
    values.push_back(static_cast<std::int64_t>(value));
}

// Returns what gather_for_metrics gives in up to `most` rounds of a pass.
template <class Loader>
Values
gather_pass(const Accelerator& accelerator, Loader& loader, int most = 1000) {
  Values all;
  for (auto& batch : loader) {
    append(all, accelerator.gather_for_metrics(batch.data));
    if (--most == 0) break;
  }
  return all;
}

// Orders of Accelerate's SeedableRandomSampler for seed 42.
const Values kFirstEpoch{2, 6, 1, 8, 4, 5, 0, 9, 3, 7};
const Values kSecondEpoch{8, 4, 9, 0, 5, 1, 6, 7, 2, 3};

AcceleratorOptions seeded(const WorldOptions& world) {
  return {.dataloader_config = {.data_seed = 42}, .world = world};
}

TEST(TorchLoader, GivesEachSampleOnceOnAnyNumberOfRanks) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    std::vector<std::vector<Values>> seen(static_cast<std::size_t>(num_ranks));
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      const Accelerator accelerator(seeded(world));
      auto loader = accelerator.prepare(numbers(10, 2));
      auto& mine = seen[static_cast<std::size_t>(*world.rank)];
      for (int epoch = 0; epoch < 2; ++epoch) {
        // Leaves the ranks' generators in different states.
        static_cast<void>(torch::rand({*world.rank + 1}));
        // Waits, because ranks are threads that share the generator.
        accelerator.wait_for_everyone();
        mine.push_back(gather_pass(accelerator, loader));
      }
    });
    for (const auto& of_rank : seen)
      EXPECT_THAT(of_rank, ::testing::ElementsAre(kFirstEpoch, kSecondEpoch));
  }
}

TEST(TorchLoader, LeavesTheDefaultGeneratorAsItWas) {
  const Accelerator accelerator(seeded(alone()));
  auto loader = accelerator.prepare(numbers(10, 2));
  torch::manual_seed(5);
  const torch::Tensor expected = torch::rand({3});
  torch::manual_seed(5);
  EXPECT_EQ(gather_pass(accelerator, loader), kFirstEpoch);
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
}

TEST(TorchLoader, DrawsFromTheGeneratorAsItIsWithoutItsType) {
  AcceleratorOptions options = seeded(alone());
  options.rng_types = {};
  const Accelerator accelerator(options);
  auto loader = accelerator.prepare(numbers(10, 2));
  torch::manual_seed(5);
  Values expected;
  append(expected, torch::randperm(10));
  torch::manual_seed(5);
  EXPECT_EQ(gather_pass(accelerator, loader), expected);
  expect_error<CheckpointError>(
      [&] {
        loader.load_state_dict(
            {{"epoch", std::int64_t{0}},
             {"torch_batches", std::int64_t{2}},
             {"seed", std::int64_t{0}}});
      },
      "rng_types leaves out RNGType::generator");
}

TEST(TorchLoader, CountsSamplesThatAreNotStacked) {
  for (const int num_ranks : {1, 2, 3}) {
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      auto loader = accelerator.prepare(
          torch::data::make_data_loader<
              torch::data::samplers::SequentialSampler>(Numbers(7), 2));
      Values all;
      for (auto& samples : loader) {
        Values mine;
        for (const auto& sample : samples) append(mine, sample.data);
        const Values gathered = accelerator.gather_for_metrics(mine);
        all.insert(all.end(), gathered.begin(), gathered.end());
      }
      EXPECT_EQ(all, (Values{0, 1, 2, 3, 4, 5, 6})) << num_ranks;
    });
  }
}

/// A dataset of the numbers below `count`, without targets.
struct Inputs
    : torch::data::datasets::Dataset<Inputs, torch::data::TensorExample> {
  explicit Inputs(std::size_t size) : count(size) {}
  torch::data::TensorExample get(std::size_t i) override {
    return torch::full({}, static_cast<std::int64_t>(i));
  }
  [[nodiscard]] std::optional<std::size_t> size() const override {
    return count;
  }
  std::size_t count;
};

TEST(TorchLoader, TakesExamplesWithoutTargets) {
  for (const int num_ranks : {1, 2}) {
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      auto stacked =
          accelerator.prepare(torch::data::make_data_loader<
                              torch::data::samplers::SequentialSampler>(
              Inputs(5).map(
                  torch::data::transforms::Stack<torch::data::TensorExample>()),
              2));
      Values all;
      for (auto& batch : stacked)
        append(all, accelerator.gather_for_metrics(batch.data));
      EXPECT_EQ(all, (Values{0, 1, 2, 3, 4})) << num_ranks;
      auto dataset = accelerator.prepare(
          DataLoader(Inputs(5), {.batch_size = 2, .shuffle = false}));
      Values same;
      for (auto& batch : dataset)
        append(same, accelerator.gather_for_metrics(batch.data));
      EXPECT_EQ(same, all) << num_ranks;
    });
  }
}

TEST(TorchLoader, LeavesRanksWithoutABatchIfNotEven) {
  std::vector<Values> seen(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.dataloader_config = {.even_batches = false}, .world = world});
    auto loader = accelerator.prepare(
        numbers<torch::data::samplers::SequentialSampler>(5, 2));
    for (auto& batch : loader)
      append(seen[static_cast<std::size_t>(*world.rank)], batch.data);
  });
  EXPECT_EQ(seen[0], (Values{0, 1, 4}));
  EXPECT_EQ(seen[1], (Values{2, 3}));
}

TEST(TorchLoader, MayHaveItsBatchesChangedByTheLoop) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(
        numbers<torch::data::samplers::SequentialSampler>(5, 2));
    Values seen;
    for (auto& batch : loader) {
      append(seen, batch.data);
      batch.data.fill_(-1);
    }
    EXPECT_EQ(
        seen,
        accelerator.is_main_process() ? (Values{0, 1, 4})
                                      : (Values{2, 3, 0, 1}));
  });
}

TEST(TorchLoader, SkipsFirstBatches) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(
        numbers<torch::data::samplers::SequentialSampler>(9, 2));
    auto skipped = accelerator.skip_first_batches(loader, 1);
    EXPECT_EQ(gather_pass(accelerator, skipped), (Values{4, 5, 6, 7, 8}));
    EXPECT_EQ(gather_pass(accelerator, loader).size(), 9U);
  });
}

template <class Sampler = torch::data::samplers::RandomSampler>
Values save_after_two_rounds(
    int num_ranks,
    const std::filesystem::path& directory,
    const LogSink& sink = {}) {
  Values head;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options = seeded(world);
    if (sink) options.world.logger = Logger(sink, LogLevel::warning);
    const Accelerator accelerator(options);
    auto loader = accelerator.prepare(numbers<Sampler>(10, 1));
    Values mine;
    for (auto& batch : loader) {
      append(mine, accelerator.gather_for_metrics(batch.data));
      if (loader.state_dict().template get<std::int64_t>("torch_batches") ==
          2 * num_ranks) {
        accelerator.save_state(directory);
        break;
      }
    }
    if (accelerator.is_main_process()) head = mine;
  });
  return head;
}

TEST(TorchLoader, ResumesInsideAPassOnAnyNumberOfRanks) {
  for (const int before : {1, 2, 3}) {
    for (const int after : {1, 2, 4}) {
      const testing::TemporaryDirectory directory(
          testing::TemporaryDirectory::memory());
      Values joined = save_after_two_rounds(before, directory.path() / "save");
      ASSERT_EQ(joined.size(), static_cast<std::size_t>(2 * before));
      Values rest, next;
      run_on_ranks(after, [&](const WorldOptions& world) {
        // The saved seed is used, not this program's.
        const Accelerator accelerator({.world = world});
        auto loader = accelerator.prepare(numbers(10, 1));
        accelerator.load_state(directory.path() / "save");
        accelerator.wait_for_everyone();
        const Values mine = gather_pass(accelerator, loader);
        const Values later = gather_pass(accelerator, loader);
        if (accelerator.is_main_process()) {
          rest = mine;
          next = later;
        }
      });
      joined.insert(joined.end(), rest.begin(), rest.end());
      EXPECT_EQ(joined, kFirstEpoch) << before << " " << after;
      EXPECT_EQ(next, kSecondEpoch) << before << " " << after;
    }
  }
}

// A sampler whose order cannot be drawn again.
class Backwards : public torch::data::samplers::SequentialSampler {
 public:
  using SequentialSampler::SequentialSampler;
};

TEST(TorchLoader, RefusesToResumeInsideAPassOfAnUnknownSampler) {
  const testing::TemporaryDirectory directory;
  std::vector<std::string> said;
  save_after_two_rounds<Backwards>(
      1, directory.path() / "save", [&](const LogRecord& record) {
        said.emplace_back(record.message);
      });
  EXPECT_THAT(
      said,
      ::testing::Contains(::testing::HasSubstr("load_state() will reject it")));
  const Accelerator accelerator(seeded(alone()));
  auto loader = accelerator.prepare(numbers<Backwards>(10, 1));
  expect_error<CheckpointError>(
      [&] { accelerator.load_state(directory.path() / "save"); },
      "in the middle of a pass over a torch::data loader, and the order of its "
      "sampler cannot be drawn again");
  accelerator.load_state(directory.path() / "save", {.strict = false});
  EXPECT_EQ(
      gather_pass(accelerator, loader), (Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(TorchLoader, ResumesBetweenPassesWithAnySampler) {
  const testing::TemporaryDirectory directory;
  const auto run = [&](bool loads) {
    const Accelerator accelerator(seeded(alone()));
    auto loader = accelerator.prepare(numbers<Backwards>(3, 1));
    if (loads) {
      accelerator.load_state(directory.path() / "save");
      EXPECT_EQ(loader.epoch(), 1U);
    }
    EXPECT_EQ(gather_pass(accelerator, loader), (Values{0, 1, 2}));
    if (!loads) accelerator.save_state(directory.path() / "save");
  };
  run(false);
  run(true);
}

TEST(TorchLoader, RefusesWhatRanksCouldNotFollow) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    expect_error<ConfigError>(
        [&] {
          accelerator.prepare(numbers(
              10,
              torch::data::DataLoaderOptions(2).workers(2).enforce_ordering(
                  false)));
        },
        "enforce_ordering(true)");
    accelerator.dataloader_config().split_batches = true;
    expect_error<ConfigError>(
        [&] { accelerator.prepare(numbers(10, 2)); }, "keeps entire batches");
    accelerator.dataloader_config().split_batches = false;
    auto loader = accelerator.prepare(
        numbers(10, torch::data::DataLoaderOptions(1).workers(2)));
    EXPECT_EQ(gather_pass(accelerator, loader).size(), 10U);
  });
}

TEST(TorchLoader, RefusesANestedPass) {
  const Accelerator accelerator({.world = alone()});
  auto loader = accelerator.prepare(numbers(4, 1));
  int count = 0;
  for (auto& batch : loader) {
    static_cast<void>(batch);
    expect_error<ConfigError>(
        [&] { loader.begin(); }, "began inside another pass over it");
    ++count;
  }
  EXPECT_EQ(count, 4);
  EXPECT_EQ(gather_pass(accelerator, loader).size(), 4U);
}

}  // namespace torch_loader_test
}  // namespace accelerate
