// Loaders that divide the sequences in their batches.
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace loader_sequences_test {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::run_on_ranks;
using torch::Tensor;

// Four samples: tokens of eight positions, and a class without positions.
auto samples(std::int64_t length = 8) {
  return TensorDataset{
      torch::arange(4 * length).view({4, length}),
      torch::tensor({7, 8, 9, 10})};
}

std::vector<std::int64_t> row(const Tensor& tensor, std::int64_t index) {
  const Tensor found = tensor[index].contiguous();
  const auto* const values = found.const_data_ptr<std::int64_t>();
  return {values, values + found.numel()};
}

TEST(LoaderSequences, GiveEachRankItsPositions) {
  for (const bool contiguous : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel = {.context = 2}, .world = world});
      auto loader = accelerator.prepare(DataLoader(
          samples(),
          {.batch_size = 2,
           .sequences = BatchSequences{
               .dims = {1, std::nullopt}, .contiguous = contiguous}}));
      const bool is_first = *world.rank == 0;
      const std::vector<std::int64_t> expected = contiguous
          ? (is_first ? std::vector<std::int64_t>{8, 9, 10, 11}
                      : std::vector<std::int64_t>{12, 13, 14, 15})
          : (is_first ? std::vector<std::int64_t>{8, 9, 14, 15}
                      : std::vector<std::int64_t>{10, 11, 12, 13});
      int num_batches = 0;
      // The dataset's own tensors stay unchanged, so a second pass is the same.
      for (int pass = 0; pass < 2; ++pass) {
        for (const auto& [tokens, labels] : loader) {
          EXPECT_EQ(tokens.size(1), 4);
          EXPECT_EQ(labels.size(0), 2);
          if (num_batches++ % 2 == 0) {
            EXPECT_EQ(row(tokens, 1), expected);
          }
        }
      }
      EXPECT_EQ(num_batches, 4);
      const auto scope = accelerator.maybe_context_parallel(
          {},
          {},
          {},
          {.cut = contiguous ? SequenceCut::contiguous : SequenceCut::zigzag,
           .sequence_length = 8});
      EXPECT_EQ(row(scope.positions().unsqueeze(0) + 8, 0), expected);
    });
  }
}

TEST(LoaderSequences, ArePaddedWithGivenValues) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    auto loader = accelerator.prepare(DataLoader(
        samples(7),
        {.batch_size = 4,
         .sequences = BatchSequences{
             .dims = {-1, std::nullopt}, .pad_values = {-100, 0}}}));
    for (const auto& [tokens, labels] : loader) {
      EXPECT_EQ(
          row(tokens, 0),
          *world.rank == 0 ? (std::vector<std::int64_t>{0, 1, 6, -100})
                           : (std::vector<std::int64_t>{2, 3, 4, 5}));
    }
    auto bare = accelerator.prepare(DataLoader(
        samples(7),
        {.batch_size = 4, .sequences = BatchSequences{.dims = {1, {}}}}));
    expect_error<ConfigError>(
        [&] { static_cast<void>(bare.begin()); },
        "7 positions do not divide evenly among 2 ranks; pass pad_values");
  });
}

TEST(LoaderSequences, AreTheDefaultOfLoaders) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.dataloader_config = {.sequences = {.dims = {1, {}}}},
         .parallel = {.context = 2},
         .world = world});
    auto [divided, whole] = accelerator.prepare(
        DataLoader(samples(), {.batch_size = 4}),
        DataLoader(
            samples(), {.batch_size = 4, .sequences = BatchSequences()}));
    for (const auto& [tokens, labels] : divided) EXPECT_EQ(tokens.size(1), 4);
    for (const auto& [tokens, labels] : whole) EXPECT_EQ(tokens.size(1), 8);
  });
}

TEST(LoaderSequences, AreDividedAfterRank0SentThem) {
  run_on_ranks(4, [&](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    auto loader = accelerator.prepare(DataLoader(
        samples(),
        {.batch_size = 3,
         .dispatch_batches = true,
         .sequences = BatchSequences{.dims = {1, {}}, .contiguous = true}}));
    const std::int64_t half = *world.rank % 2 * 4;
    for (const auto& [tokens, labels] : loader) {
      for (std::int64_t i = 0; i < tokens.size(0); ++i) {
        const std::int64_t first = (labels[i].item<std::int64_t>() - 7) * 8;
        EXPECT_THAT(
            row(tokens, i),
            ElementsAre(
                first + half,
                first + half + 1,
                first + half + 2,
                first + half + 3));
      }
    }
  });
}

// A torch::data dataset of four rows.
struct Rows : torch::data::datasets::Dataset<Rows> {
  torch::data::Example<> get(std::size_t i) override {
    const auto first = static_cast<std::int64_t>(8 * i);
    return {torch::arange(first, first + 8), torch::zeros({})};
  }
  [[nodiscard]] std::optional<std::size_t> size() const override { return 4; }
};

TEST(LoaderSequences, HoldForLoadersOfTorch) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.dataloader_config =
             {.sequences = {.dims = {1, {}}, .contiguous = true}},
         .parallel = {.context = 2},
         .world = world});
    auto loader = accelerator.prepare(torch::data::make_data_loader(
        Rows().map(torch::data::transforms::Stack<>()),
        torch::data::samplers::SequentialSampler(4),
        torch::data::DataLoaderOptions().batch_size(4)));
    const Tensor all = torch::arange(32).view({4, 8});
    for (const auto& batch : loader) {
      EXPECT_TRUE(torch::equal(batch.data, all.narrow(1, *world.rank * 4, 4)));
      EXPECT_EQ(batch.target.numel(), 4);
    }
  });
}

TEST(LoaderSequences, AreRefusedForBatchesWithoutTensors) {
  const Accelerator accelerator(
      {.dataloader_config = {.sequences = {.dims = {1}}},
       .world = {.rank = 0, .size = 1}});
  struct Words {
    [[nodiscard]] std::int64_t size() const { return 2; }
    [[nodiscard]] std::string get(std::int64_t) const { return "word"; }
  };
  const auto collate = [](std::vector<std::string> words) { return words; };
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(
            accelerator.prepare(DataLoader(Words(), {}, collate)));
      },
      "whose batches are not nested tensors");
}

// Checked even on one process, which divides nothing.
TEST(LoaderSequences, NameBatchesOfOtherTensors) {
  const Accelerator accelerator({.world = {.rank = 0, .size = 1}});
  auto loader = accelerator.prepare(
      DataLoader(samples(), {.sequences = BatchSequences{.dims = {1}}}));
  expect_error<ConfigError>(
      [&] { static_cast<void>(loader.begin()); },
      "sequences of a loader have 1 dims and 0 pad_values, but a batch has 2 "
      "tensors");
  auto whole = accelerator.prepare(
      DataLoader(samples(), {.sequences = BatchSequences{.dims = {1, {}}}}));
  for (const auto& [tokens, labels] : whole) EXPECT_EQ(tokens.size(1), 8);
}

TEST(ShiftLabels, MovesThemOnePositionForward) {
  const Tensor labels = torch::tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_TRUE(torch::equal(
      shift_labels(labels), torch::tensor({{2, 3, -100}, {5, 6, -100}})));
  EXPECT_TRUE(torch::equal(
      shift_labels(labels, 0, -1), torch::tensor({{4, 5, 6}, {-1, -1, -1}})));
  EXPECT_EQ(shift_labels(torch::zeros({2, 0}, torch::kLong)).numel(), 0);
  expect_error<ConfigError>(
      [&] { static_cast<void>(shift_labels(labels, 2)); },
      "pass that of the sequence");
}

}  // namespace loader_sequences_test
}  // namespace accelerate
