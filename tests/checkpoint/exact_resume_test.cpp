#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include "checkpoint/resumable_training.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace exact_resume_test {

namespace fs = std::filesystem;
using testing::automatic_checkpoints;
using testing::equal;
using testing::kAdam;
using testing::kAlone;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using testing::values_of;
using testing::without_dropout;
using Adam = testing::AdamTraining;

template <class Optimizer, class Options>
void expect_exact_resume(const Options& options, bool asynchronous = false) {
  const TemporaryDirectory directory;
  using T = testing::ResumableTraining<Optimizer, Options>;
  T uninterrupted(automatic_checkpoints(kAlone, directory.path()), options, 1);
  // Saves in the middle of the second pass.
  const auto losses = uninterrupted.run(20, 15, [&] {
    const SaveTicket ticket =
        uninterrupted.accelerator().save_state({.asynchronous = asynchronous});
    EXPECT_EQ(ticket.path().filename(), "checkpoint_0");
  });
  uninterrupted.accelerator().finish();
  T resumed(automatic_checkpoints(kAlone, directory.path()), options, 2);
  resumed.run(2);
  resumed.accelerator().load_state();
  EXPECT_EQ(resumed.counter().count, 15);
  EXPECT_EQ(resumed.counter().name, std::string(15, 'x'));
  const auto rest = resumed.run(5);
  EXPECT_EQ(rest, std::vector<double>(losses.begin() + 15, losses.end()));
  EXPECT_EQ(resumed.counter().ratio, uninterrupted.counter().ratio);
  EXPECT_TRUE(equal(values_of(resumed.net()), values_of(uninterrupted.net())));
}

TEST(SaveState, ResumesExactlyWithAdamW) {
  expect_exact_resume<optim::AdamW>(
      torch::optim::AdamWOptions(0.05).amsgrad(true));
}
TEST(SaveState, ResumesExactlyWithSGD) {
  expect_exact_resume<torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9));
}
TEST(SaveState, ResumesExactlyWithAdagrad) {
  expect_exact_resume<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1));
}
TEST(SaveState, ResumesExactlyWithRMSprop) {
  expect_exact_resume<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}
TEST(SaveState, ResumesExactlyAfterAnAsynchronousSave) {
  expect_exact_resume<optim::Adam>(torch::optim::AdamOptions(0.05), true);
}

TEST(SaveState, ResumesExactlyWithAdaLomo) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  const auto train = [&](std::uint64_t seed, bool resumes) {
    torch::manual_seed(seed);
    const Accelerator accelerator(options);
    torch::nn::Linear net(6, 3);
    optim::AdaLomo lomo(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, lomo);
    const auto step = [&, &model = model] {
      accelerator.lomo_backward(
          model(torch::ones({2, 6})).square().sum(), 0.05);
    };
    if (resumes) {
      accelerator.load_state(directory / "out");
    } else {
      for (int i = 0; i < 3; ++i) step();
      accelerator.save_state(directory / "out", {.asynchronous = true});
    }
    for (int i = 0; i < 3; ++i) step();
    accelerator.finish();
    return net->weight.detach().clone();
  };
  const at::Tensor uninterrupted = train(1, false);
  EXPECT_TRUE(train(2, true).equal(uninterrupted));
}
TEST(SaveState, OnManyRanksGoesOnExactlyAndOnFewerAndMoreFromTheSameState) {
  const TemporaryDirectory directory;
  constexpr std::size_t kSteps = 10, kSaved = 8;
  std::vector<double> losses[2];
  std::vector<at::Tensor> at_save, at_end;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Adam saved(automatic_checkpoints(world, directory.path()), kAdam, 1);
    without_dropout(saved.net());
    losses[*world.rank] = saved.run(kSteps, kSaved, [&] {
      static_cast<void>(saved.accelerator().save_state());
      if (world.rank == 0) at_save = values_of(saved.net());
    });
    if (world.rank == 0) at_end = values_of(saved.net());
    saved.accelerator().finish();
  });
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_TRUE(fs::exists(
      directory / "checkpoints/checkpoint_0/rank-00001.safetensors"));
  run_on_ranks(2, [&](const WorldOptions& world) {
    Adam resumed(automatic_checkpoints(world, directory.path()), kAdam, 2);
    without_dropout(resumed.net());
    resumed.accelerator().load_state();
    const auto& expected = losses[*world.rank];
    EXPECT_EQ(
        resumed.run(kSteps - kSaved),
        std::vector<double>(expected.begin() + kSaved, expected.end()));
    if (world.rank == 0) {
      EXPECT_TRUE(equal(values_of(resumed.net()), at_end));
    }
    resumed.accelerator().finish();
  });
  run_on_ranks(3, [&](const WorldOptions& world) {
    Adam resumed(automatic_checkpoints(world, directory.path()), kAdam, 2);
    resumed.accelerator().load_state();
    EXPECT_EQ(resumed.counter().count, static_cast<std::int64_t>(kSaved));
    EXPECT_TRUE(equal(values_of(resumed.net()), at_save));
    resumed.run(1);
    resumed.accelerator().finish();
  });
  Adam alone(automatic_checkpoints(kAlone, directory.path()), kAdam, 2);
  alone.accelerator().load_state();
  EXPECT_EQ(alone.counter().count, static_cast<std::int64_t>(kSaved));
  EXPECT_TRUE(equal(values_of(alone.net()), at_save));
}

TEST(SaveState, WithPowerSgdOnTwoRanksGoesOnExactly) {
  const TemporaryDirectory directory;
  std::vector<at::Tensor> at_end;
  const auto options_of = [&](const WorldOptions& world) {
    AcceleratorOptions options = automatic_checkpoints(world, directory.path());
    ReplicateOptions& replicate = options.parallel.replicate_options;
    replicate.comm_hook = CommHook::power_sgd;
    replicate.power_sgd.start_power_sgd_iter = 2;
    replicate.power_sgd.min_compression_rate = 0.5;
    return options;
  };
  run_on_ranks(2, [&](const WorldOptions& world) {
    Adam saved(options_of(world), kAdam, 1);
    without_dropout(saved.net());
    saved.run(
        12, 7, [&] { static_cast<void>(saved.accelerator().save_state()); });
    if (world.rank == 0) at_end = values_of(saved.net());
    saved.accelerator().finish();
  });
  run_on_ranks(2, [&](const WorldOptions& world) {
    Adam resumed(options_of(world), kAdam, 2);
    without_dropout(resumed.net());
    resumed.accelerator().load_state();
    resumed.run(5);
    EXPECT_TRUE(equal(values_of(resumed.net()), at_end));
    resumed.accelerator().finish();
  });
}

}  // namespace exact_resume_test
}  // namespace accelerate
