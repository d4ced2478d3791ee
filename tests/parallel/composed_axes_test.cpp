// Replicas, shards, divided sequences and split layers together: any
// combination trains as one process does, and loads the checkpoints of any
// other.
#include <accelerate/accelerate.h>

#include "axes_problem.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace composed_axes_test {

using namespace axes_problem;
using testing::TemporaryDirectory;

TEST(ComposedAxes, TrainAloneAsOneProcessDoes) {
  const Numbers numbers{.steps = 20};
  const Outcome expected = outcome_on({}, numbers);
  // The samples do not divide among three ranks.
  for (const int ranks : {2, 4}) {
    expect_like(expected, {.replicate = ranks}, numbers);
    expect_like(expected, {.shard = ranks}, numbers);
  }
  for (const int ranks : {2, 3, 4}) {
    expect_like(expected, {.context = ranks}, numbers);
    expect_like(expected, {.tensor = ranks}, numbers);
  }
}

const Axes kPairs[] = {
    {.replicate = 2, .shard = 2},
    {.replicate = 2, .context = 2},
    {.replicate = 2, .tensor = 2},
    {.shard = 2, .context = 2},
    {.shard = 2, .tensor = 2},
    {.context = 2, .tensor = 2}};

TEST(ComposedAxes, TrainInPairsAsOneProcessDoes) {
  const Outcome expected = outcome_on({}, {});
  for (const Axes& axes : kPairs) expect_like(expected, axes);
}

TEST(ComposedAxes, AccumulateAndRecompute) {
  const Numbers numbers{.steps = 3, .window = 3, .recomputes = true};
  const Outcome expected = outcome_on({}, numbers);
  for (const Axes& axes : kPairs) expect_like(expected, axes, numbers);
}

TEST(ComposedAxes, TrainInBf16) {
  const Numbers numbers{
      .steps = 4, .precision = Precision::bf16, .tolerance = 2e-2};
  const Outcome expected = outcome_on({}, numbers);
  for (const Axes& axes : kPairs) expect_like(expected, axes, numbers);
}

// Ranks along tensor divide each context rank's share of the sequence.
TEST(ComposedAxes, TrainOnSlicesOfDividedSequences) {
  for (const bool recomputes : {false, true}) {
    const Numbers numbers{.window = 2, .recomputes = recomputes};
    const Outcome expected = outcome_on<EncoderOnSlices>({}, numbers);
    for (const Axes& axes :
         {Axes{.tensor = 3},
          Axes{.context = 2, .tensor = 2},
          Axes{.shard = 2, .tensor = 2},
          Axes{.replicate = 2, .context = 2, .tensor = 2}})
      expect_like<EncoderOnSlices>(expected, axes, numbers);
  }
}

TEST(ComposedAxes, TrainOnEightAndSixteenRanks) {
  const Numbers numbers{.steps = 3};
  const Outcome expected = outcome_on({}, numbers);
  expect_like(expected, {.replicate = 2, .context = 2, .tensor = 2}, numbers);
  expect_like(expected, {.shard = 2, .context = 2, .tensor = 2}, numbers);
  expect_like(expected, {2, 2, 2, 2}, numbers);
}

// The optimizer's moments in a checkpoint, as one process loads them.
std::vector<Tensor> moments_in(const std::filesystem::path& directory) {
  std::vector<Tensor> moments;
  run_on_ranks(1, [&](const WorldOptions& world) {
    const Accelerator accelerator(options_of({}, {}, Gpt::plan(), world));
    const auto net = std::make_shared<Gpt>();
    torch::optim::SGD sgd(
        net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.load_state(directory);
    for (const Tensor& parameter : net->parameters()) {
      moments.push_back(static_cast<const torch::optim::SGDParamState&>(
                            *sgd.state().at(parameter.unsafeGetTensorImpl()))
                            .momentum_buffer()
                            .clone());
    }
  });
  return moments;
}

TEST(ComposedAxes, LoadCheckpointsOfOtherGrids) {
  const TemporaryDirectory directory;
  const Axes grids[] = {
      {.shard = 2, .context = 2, .tensor = 2},
      {},
      {.tensor = 3},
      {.shard = 4, .tensor = 2}};
  for (const Axes& from : grids) {
    Weights expected;
    run<Gpt>(
        from, {}, [&](const auto& accelerator, auto& model, auto& optimizer) {
          Outcome ignored;
          train(accelerator, model, optimizer, {}, 0, 2, ignored);
          accelerator.save_state(directory / from.name());
          accelerator.save_model(model, directory / (from.name() + "_model"));
          const Weights mine =
              named(accelerator.get_state_dict(model, {.rank0_only = false}));
          if (accelerator.is_main_process()) expected = mine;
        });
    Gpt plain;
    load_model(plain, directory / (from.name() + "_model"));
    const Weights loaded = named(get_state_dict(plain));
    for (const auto& [name, weight] : expected)
      EXPECT_TRUE(torch::equal(loaded.at(name), weight)) << name;
    const auto moments = moments_in(directory / from.name());
    for (const Axes& to : grids) {
      // From the first grid to every other, and back.
      if (from.num_ranks() != 8 && to.name() != grids[0].name()) continue;
      SCOPED_TRACE(from.name() + " to " + to.name());
      run<Gpt>(
          to, {}, [&](const auto& accelerator, auto& model, auto& optimizer) {
            Outcome ignored;
            train(accelerator, model, optimizer, {}, 5, 6, ignored);
            accelerator.load_state(directory / from.name());
            for (const auto& [name, weight] : named(
                     accelerator.get_state_dict(model, {.rank0_only = false})))
              EXPECT_TRUE(torch::equal(weight, expected.at(name))) << name;
            accelerator.save_state(directory / (from.name() + "_" + to.name()));
          });
      const auto again =
          moments_in(directory / (from.name() + "_" + to.name()));
      ASSERT_EQ(again.size(), moments.size());
      for (std::size_t i = 0; i < moments.size(); ++i)
        EXPECT_TRUE(torch::equal(again[i], moments[i])) << i;
    }
  }
}

}  // namespace composed_axes_test
}  // namespace accelerate
