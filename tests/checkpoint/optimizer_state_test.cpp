#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include "checkpoint/resumable_training.h"
#include "checkpoint/run/checkpoints.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "train/session/session.h"

namespace accelerate {
namespace optimizer_state_test {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::kAlone;
using testing::TemporaryDirectory;
using Adam = testing::AdamTraining;

TEST(SaveState, KeepsTiedWeightsOnceAndMastersExactly) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  options.master_weights = true;
  const auto make = [] {
    torch::nn::Sequential net(
        torch::nn::Linear(4, 4), torch::nn::ReLU(), torch::nn::Linear(4, 4));
    net->to(torch::kBFloat16);
    return net;
  };
  torch::manual_seed(1);
  auto net = make();
  const auto step = [](const auto& accelerator, auto& model, auto& optimizer) {
    for (int i = 0; i < 3; ++i) {
      accelerator.backward(model(torch::ones({2, 4}, torch::kBFloat16)).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  const Accelerator accelerator(options);
  torch::optim::Adam inner(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, inner);
  step(accelerator, model, optimizer);
  static_cast<void>(accelerator.save_state(directory / "out"));
  step(accelerator, model, optimizer);

  torch::manual_seed(2);
  auto again = make();
  const Accelerator second(options);
  torch::optim::Adam inner2(again->parameters(), 1e-3);
  auto [model2, optimizer2] = second.prepare(again, inner2);
  second.load_state(directory / "out");
  step(second, model2, optimizer2);
  for (std::size_t i = 0; i < inner.param_groups()[0].params().size(); ++i) {
    EXPECT_TRUE(inner.param_groups()[0].params()[i].equal(
        inner2.param_groups()[0].params()[i]));
  }
}

// With stale masters, the first step would undo the loaded weights.
TEST(LoadState, FillsMastersOfAnOptimizerThatTheCheckpointLacksUnlessStrict) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  options.master_weights = true;
  const auto make = [](std::uint64_t seed) {
    torch::manual_seed(seed);
    torch::nn::Linear net(4, 4);
    net->to(torch::kBFloat16);
    return net;
  };
  auto saved = make(1);
  {
    const Accelerator accelerator(options);
    static_cast<void>(accelerator.prepare(saved));
    static_cast<void>(accelerator.save_state(directory / "out"));
  }
  auto net = make(2);
  torch::optim::SGD inner(net->parameters(), 1.0);
  const Accelerator accelerator(options);
  auto [model, optimizer] = accelerator.prepare(net, inner);
  expect_error<CheckpointError>(
      [&] { accelerator.load_state(directory / "out"); },
      "the checkpoint has 0 optimizers, but 1 are prepared");
  accelerator.load_state(directory / "out", {.strict = false});
  accelerator.backward(model(torch::zeros({2, 4}, torch::kBFloat16)).sum() * 0);
  optimizer.step();
  EXPECT_TRUE(net->weight.equal(saved->weight));
  EXPECT_TRUE(net->bias.equal(saved->bias));
}

// Trains a bf16 layer with master weights, Adam and a schedule on one rank.
class HalfPrecisionTraining {
 public:
  HalfPrecisionTraining(std::uint64_t seed, const MegatronLMOptions& megatron)
      : net_([&] {
          torch::manual_seed(seed);
          torch::nn::Linear net(4, 4);
          net->to(torch::kBFloat16);
          return net;
        }()),
        inner_(net_->parameters(), 1e-3),
        schedule_(inner_, {.step_size = 1, .gamma = 0.5}),
        accelerator_([&] {
          AcceleratorOptions options;
          options.world = kAlone;
          options.master_weights = true;
          options.parallel.megatron_lm = megatron;
          return options;
        }()),
        prepared_(accelerator_.prepare(net_, inner_, schedule_)) {}

  const Accelerator& accelerator() const { return accelerator_; }
  torch::nn::Linear& net() { return net_; }
  double learning_rate() const {
    return inner_.param_groups()[0].options().get_lr();
  }
  std::size_t num_states() const { return inner_.state().size(); }
  at::Tensor master() const { return inner_.param_groups()[0].params()[0]; }
  void run(int steps) {
    auto& [model, optimizer, schedule] = prepared_;
    for (int i = 0; i < steps; ++i) {
      accelerator_.backward(model(torch::ones({2, 4}, torch::kBFloat16)).sum());
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
    }
  }

 private:
  torch::nn::Linear net_;
  torch::optim::Adam inner_;
  optim::StepLR schedule_;
  Accelerator accelerator_;
  decltype(accelerator_.prepare(net_, inner_, schedule_)) prepared_;
};

TEST(SaveState, LeavesOptimizersOutWithNoSaveOptim) {
  const TemporaryDirectory directory;
  HalfPrecisionTraining whole(1, {});
  HalfPrecisionTraining saved(1, {.no_save_optim = true});
  whole.run(3);
  saved.run(3);
  static_cast<void>(whole.accelerator().save_state(directory / "whole"));
  static_cast<void>(saved.accelerator().save_state(directory / "bare"));
  const auto size_of = [](const fs::path& path) {
    std::uintmax_t size = 0;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.path().extension() == ".safetensors") size += entry.file_size();
    }
    return size;
  };
  // 20 parameters: 2 bytes each in the model, and 12 in Adam and its masters.
  EXPECT_GE(size_of(directory / "whole"), size_of(directory / "bare") + 240);

  HalfPrecisionTraining loaded(2, {});
  loaded.run(1);
  expect_error<CheckpointError>(
      [&] { loaded.accelerator().load_state(directory / "bare"); },
      "no_load_optim or strict = false keeps those that are prepared");
  loaded.accelerator().load_state(directory / "bare", {.strict = false});
  EXPECT_TRUE(loaded.net()->weight.equal(saved.net()->weight));
  EXPECT_TRUE(loaded.master().equal(saved.net()->weight.to(torch::kFloat)));
  EXPECT_EQ(loaded.num_states(), 2);
  EXPECT_EQ(loaded.learning_rate(), 5e-4);
}

TEST(LoadState, KeepsOptimizersWithNoLoadOptim) {
  const TemporaryDirectory directory;
  HalfPrecisionTraining whole(1, {});
  HalfPrecisionTraining bare(1, {.no_save_optim = true});
  whole.run(3);
  bare.run(3);
  static_cast<void>(whole.accelerator().save_state(directory / "whole"));
  static_cast<void>(bare.accelerator().save_state(directory / "bare"));

  HalfPrecisionTraining loaded(2, {.no_load_optim = true});
  loaded.accelerator().load_state(directory / "whole");
  EXPECT_TRUE(loaded.net()->weight.equal(whole.net()->weight));
  EXPECT_TRUE(loaded.master().equal(whole.master()));
  EXPECT_FALSE(loaded.master().equal(whole.net()->weight.to(torch::kFloat)));
  EXPECT_EQ(loaded.num_states(), 0);
  EXPECT_EQ(loaded.learning_rate(), 1e-3);

  loaded.accelerator().load_state(directory / "bare");
  EXPECT_TRUE(loaded.master().equal(bare.net()->weight.to(torch::kFloat)));
}

// In-memory states of elastic runs are saved this way.
TEST(SaveState, IsWholeInAWholeStateScopeWhateverTheSettingsSay) {
  const TemporaryDirectory directory;
  const MegatronLMOptions bare{.no_load_optim = true, .no_save_optim = true};
  HalfPrecisionTraining saved(1, bare);
  saved.run(3);
  HalfPrecisionTraining loaded(2, bare);
  {
    const detail::WholeStateScope save(
        *detail::AcceleratorAccess::session(saved.accelerator())
             .services.checkpoints);
    static_cast<void>(saved.accelerator().save_state(directory / "out"));
    const detail::WholeStateScope load(
        *detail::AcceleratorAccess::session(loaded.accelerator())
             .services.checkpoints);
    loaded.accelerator().load_state(directory / "out");
  }
  EXPECT_EQ(loaded.num_states(), 2);
  EXPECT_EQ(loaded.learning_rate(), saved.learning_rate());
  saved.run(1);
  loaded.run(1);
  EXPECT_TRUE(loaded.master().equal(saved.master()));
}

// Otherwise the first step would copy the checkpoint's weight into the skipped
// parameter.
TEST(LoadState, KeepsMastersOfSkippedParameters) {
  const TemporaryDirectory directory;
  HalfPrecisionTraining saved(1, {});
  saved.run(3);
  static_cast<void>(saved.accelerator().save_state(directory / "out"));
  HalfPrecisionTraining loaded(2, {});
  loaded.run(1);
  const at::Tensor before = loaded.master().clone();
  loaded.accelerator().load_state(directory / "out", {.skip = {"*weight"}});
  EXPECT_TRUE(loaded.master().equal(before));
  EXPECT_FALSE(loaded.master().equal(saved.master()));
}

}  // namespace optimizer_state_test
}  // namespace accelerate
