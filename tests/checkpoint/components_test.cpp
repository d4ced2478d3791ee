#include <accelerate/accelerate.h>

#include "checkpoint/components/component.h"
#include "checkpoint/components/states.h"
#include "checkpoint/load/checkpoint_reader.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"
#include "train/session/session.h"

namespace accelerate {
namespace components_test {

namespace fs = std::filesystem;
using detail::AnyStateful;
using detail::CheckpointContents;
using detail::CheckpointReader;
using detail::CheckpointSource;
using detail::Layout;
using detail::MatchRules;
using testing::expect_error;
using testing::run_on_ranks;
using testing::TemporaryDirectory;

const WorldOptions kAlone{.rank = 0, .size = 1};

// A component that a feature could register: a tensor in its own file, a count
// that is the same on all ranks, and a count per rank.
class Averages final : public detail::CheckpointComponent {
 public:
  Averages(int own_rank, at::Tensor first)
      : rank(own_rank), mean(std::move(first)) {}

  [[nodiscard]] std::string_view key() const override { return "averages"; }
  void collect(CheckpointContents& contents) const override {
    contents.sections.push_back(
        {"averages", {{"mean", mean, layout(), rank == 0}}});
    contents.state.set("averages", StateDict{{"count", count}});
    contents.rank_state.set("averages", StateDict{{"seen", seen}});
  }
  [[nodiscard]] std::vector<std::string> check(
      const CheckpointSource& source,
      const MatchRules& rules) override {
    const auto saved = source.sections.find("averages");
    if (saved == source.sections.end()) return {"there are no averages"};
    return detail::mismatches(
        "averages", saved->second, {{"mean", mean, layout()}}, {}, rules);
  }
  void load(const CheckpointSource& source, const MatchRules& rules) override {
    detail::read_into(
        source.sections.at("averages"), {{"mean", mean, layout()}}, rules);
    count = source.state.get<StateDict>("averages").get<std::int64_t>("count");
    seen =
        source.rank_state->get<StateDict>("averages").get<std::int64_t>("seen");
  }

  int rank;
  at::Tensor mean;
  std::int64_t count = 0;
  std::int64_t seen = 0;

 private:
  [[nodiscard]] Layout layout() const {
    return Layout::unsharded(mean.sizes().vec());
  }
};

AcceleratorOptions in(const WorldOptions& world) {
  AcceleratorOptions options;
  options.world = world;
  return options;
}

struct Program {
  Program(const WorldOptions& world, at::Tensor mean, int width = 2)
      : accelerator(in(world)),
        net(4, width),
        model(accelerator.prepare(net)),
        averages(
            std::make_shared<Averages>(world.rank.value(), std::move(mean))) {
    model.prepared()->session->services.checkpoints->components.push_back(
        averages);
  }

  Accelerator accelerator;
  torch::nn::Linear net;
  Model<torch::nn::LinearImpl> model;
  std::shared_ptr<Averages> averages;
};

TEST(CheckpointComponent, IsSavedAndLoadedWhenRegistered) {
  const TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Program saved(world, at::arange(6, at::kFloat));
    saved.averages->count = 7;
    saved.averages->seen = 10 + world.rank.value();
    saved.accelerator.save_state(directory / "out").wait();
    EXPECT_TRUE(fs::exists(directory / "out" / "averages.safetensors"));

    Program loaded(world, at::zeros(6));
    loaded.accelerator.load_state(directory / "out");
    EXPECT_TRUE(loaded.averages->mean.equal(at::arange(6, at::kFloat)));
    EXPECT_EQ(loaded.averages->count, 7);
    EXPECT_EQ(loaded.averages->seen, 10 + world.rank.value());
    EXPECT_TRUE(loaded.net->weight.equal(saved.net->weight));
  });
}

TEST(CheckpointComponent, KeepsAllOthersFromLoadingIfItDoesNotFit) {
  const TemporaryDirectory directory;
  Program saved(kAlone, at::arange(6, at::kFloat));
  static_cast<void>(saved.accelerator.save_state(directory / "out"));

  Program other_mean(kAlone, at::zeros(5));
  const at::Tensor weight = other_mean.net->weight.clone();
  expect_error<CheckpointError>(
      [&] { other_mean.accelerator.load_state(directory / "out"); },
      "nothing was loaded:\n  averages: mean has shape [6] in the checkpoint "
      "and [5] here");
  EXPECT_TRUE(other_mean.net->weight.equal(weight));

  Program other_model(kAlone, at::zeros(6), 3);
  expect_error<CheckpointError>(
      [&] { other_model.accelerator.load_state(directory / "out"); },
      "model: weight has shape [2, 4] in the checkpoint and [3, 4] here");
  EXPECT_TRUE(other_model.averages->mean.equal(at::zeros(6)));
}

TEST(CheckpointComponent, ComplainsIfAnOldCheckpointLacksIt) {
  const TemporaryDirectory directory;
  {
    const Accelerator accelerator(in(kAlone));
    torch::nn::Linear net(4, 2);
    auto model = accelerator.prepare(net);
    static_cast<void>(accelerator.save_state(directory / "out"));
  }
  Program run(kAlone, at::zeros(6));
  expect_error<CheckpointError>(
      [&] { run.accelerator.load_state(directory / "out"); },
      "there are no averages");
}

TEST(CheckpointComponent, NeedsAUniqueKey) {
  const TemporaryDirectory directory;
  Program run(kAlone, at::zeros(6));
  run.model.prepared()->session->services.checkpoints->components.push_back(
      run.averages);
  expect_error<CheckpointError>(
      [&] { static_cast<void>(run.accelerator.save_state(directory / "out")); },
      "two components are called averages");
}

// Trains two ranks with PowerSGD; returns the saved state of rank 0's
// strategies.
StateDict train_and_save(
    const WorldOptions& world,
    const fs::path& path,
    bool master_weights,
    const fs::path& resume_from) {
  AcceleratorOptions options;
  options.world = world;
  options.master_weights = master_weights;
  options.parallel.replicate_options.comm_hook = CommHook::power_sgd;
  options.parallel.replicate_options.power_sgd.start_power_sgd_iter = 2;
  const Accelerator accelerator(options);
  torch::manual_seed(1);
  torch::nn::Linear net(16, 16);
  torch::optim::SGD inner(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, inner);
  if (resume_from.empty()) {
    for (int i = 0; i < 4; ++i) {
      const at::Tensor x = at::randn({2, 16}) * (world.rank.value() + 1);
      accelerator.backward(model(x).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  } else {
    accelerator.load_state(resume_from);
  }
  accelerator.save_state(path).wait();
  accelerator.finish();
  return CheckpointReader(path)
      .state("rank-00000.safetensors")
      .get<std::vector<StateDict>>("strategies")
      .at(0);
}

TEST(StrategyComponent, KeepsPowerSgdWhenMasterWeightsAreTurnedOn) {
  const TemporaryDirectory directory;
  // Indexed by rank. Each run needs a new world, because a world uses its store
  // once.
  std::vector<StateDict> saved(2), again(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    saved[static_cast<std::size_t>(*world.rank)] =
        train_and_save(world, directory / "saved", false, fs::path());
  });
  run_on_ranks(2, [&](const WorldOptions& world) {
    again[static_cast<std::size_t>(*world.rank)] =
        train_and_save(world, directory / "again", true, directory / "saved");
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const auto before = saved[rank].get<StateDict>("replicate");
    const auto after = again[rank].get<StateDict>("replicate");
    EXPECT_EQ(before.get<std::int64_t>("iteration"), 4);
    EXPECT_EQ(after.get<std::int64_t>("iteration"), 4);
    const auto error = before.get<StateDict>("errors").values();
    ASSERT_FALSE(error.empty());
    for (const auto& [name, value] : error) {
      EXPECT_TRUE(after.get<StateDict>("errors").get<at::Tensor>(name).equal(
          std::get<at::Tensor>(value)))
          << name;
    }
  }
}

// Parameter names in optimizer states count only the models still prepared.
TEST(OptimizerComponent, NamesParametersAlikeAfterFreeMemory) {
  const TemporaryDirectory directory;
  const auto step = [](const Accelerator& accelerator, auto& prepared) {
    auto& [model, optimizer] = prepared;
    accelerator.backward(model(at::ones({2, 4})).sum());
    optimizer.step();
  };
  {
    const Accelerator accelerator(in(kAlone));
    torch::nn::Linear first(4, 2), second(4, 2);
    torch::optim::Adam of_first(first->parameters(), 0.1);
    auto freed = accelerator.prepare(first, of_first);
    accelerator.free_memory();
    torch::optim::Adam of_second(second->parameters(), 0.1);
    auto prepared = accelerator.prepare(second, of_second);
    step(accelerator, prepared);
    static_cast<void>(accelerator.save_state(directory / "out"));
  }
  const Accelerator accelerator(in(kAlone));
  torch::nn::Linear net(4, 2);
  torch::optim::Adam inner(net->parameters(), 0.1);
  auto prepared = accelerator.prepare(net, inner);
  accelerator.load_state(directory / "out");
  const auto& state = static_cast<torch::optim::AdamParamState&>(
      *inner.state().at(net->weight.unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 1);
}

}  // namespace components_test
}  // namespace accelerate
