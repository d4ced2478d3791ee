#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include <fstream>

#include "checkpoint/resumable_training.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace load_state_test {

namespace fs = std::filesystem;
using testing::automatic_checkpoints;
using testing::equal;
using testing::expect_error;
using testing::flip_a_byte;
using testing::kAdam;
using testing::kAlone;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using testing::values_of;
using Adam = testing::AdamTraining;

struct OtherImpl : torch::nn::Module {
  OtherImpl() {
    first = register_module("first", torch::nn::Linear(4, 9));
    third = register_module("third", torch::nn::Linear(8, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return first(x); }
  torch::nn::Linear first{nullptr}, third{nullptr};
};
TORCH_MODULE(Other);

TEST(LoadState, ListsEverythingThatDoesNotFitAndLoadsNothing) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  {
    Adam training(options, kAdam, 1);
    training.run(1);
    static_cast<void>(training.accelerator().save_state(directory / "out"));
  }
  const Accelerator accelerator(options);
  Other other;
  torch::optim::SGD optimizer(other->parameters(), 0.1);
  auto prepared = accelerator.prepare(other, optimizer);
  const at::Tensor before = other->first->bias.clone();
  try {
    accelerator.load_state(directory / "out");
    ADD_FAILURE();
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    for (const char* phrase :
         {"first.weight has shape [8, 4] in the checkpoint and [9, 4] here",
          "not in the checkpoint: third.weight, third.bias",
          "in the checkpoint only: norm.bias",
          "the state is of Adam, but the optimizer is SGD",
          "1 schedulers, but this program has 0",
          "1 loaders, but this program has 0",
          "1 objects, but this program has 0",
          "nothing was loaded"}) {
      EXPECT_NE(text.find(phrase), std::string::npos) << phrase << "\n" << text;
    }
  }
  EXPECT_TRUE(other->first->bias.equal(before));
}

TEST(LoadState, SkipsNamesThatMatchAPattern) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  Adam training(options, kAdam, 1);
  training.run(2);
  static_cast<void>(training.accelerator().save_state(directory / "out"));
  Adam other(options, kAdam, 2);
  other.run(1);
  const at::Tensor kept = other.net()->second->weight.clone();
  other.accelerator().load_state(directory / "out", {.skip = {"second.*"}});
  EXPECT_TRUE(other.net()->second->weight.equal(kept));
  EXPECT_TRUE(other.net()->first->weight.equal(training.net()->first->weight));
}

TEST(LoadState, KeepsANewHeadUnchangedAlsoInTheOptimizer) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  struct BodyImpl : torch::nn::Module {
    explicit BodyImpl(const char* name_of_head) {
      body = register_module("body", torch::nn::Linear(3, 3));
      head = register_module(name_of_head, torch::nn::Linear(3, 2));
    }
    at::Tensor forward(const at::Tensor& x) { return head(body(x)); }
    torch::nn::Linear body{nullptr}, head{nullptr};
  };
  const auto make = [&](const char* head, auto&& use) {
    const Accelerator accelerator(options);
    auto net = std::make_shared<BodyImpl>(head);
    torch::optim::Adam adam(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model(torch::ones({2, 3})).sum());
    optimizer.step();
    optimizer.zero_grad();
    use(accelerator, net, adam);
  };
  at::Tensor body;
  make("old_head", [&](const auto& accelerator, auto& net, auto&) {
    accelerator.save_state(directory / "out");
    body = net->body->weight.detach().clone();
  });
  make("new_head", [&](const auto& accelerator, auto& net, auto& adam) {
    expect_error<CheckpointError>(
        [&] { accelerator.load_state(directory / "out"); },
        "the state has no parameter new_head.weight");
    const at::Tensor head = net->head->weight.detach().clone();
    accelerator.load_state(
        directory / "out",
        {.skip = {"old_head.*"}, .allow_missing = {"new_head.*"}});
    EXPECT_TRUE(net->body->weight.equal(body));
    EXPECT_TRUE(net->head->weight.equal(head));
    // The new head keeps its optimizer state.
    EXPECT_EQ(adam.state().size(), 4u);
  });
}

TEST(LoadState, PassesOverTornCheckpointsWithAWarning) {
  const TemporaryDirectory directory;
  std::string warnings;
  AcceleratorOptions options = automatic_checkpoints(kAlone, directory.path());
  options.world.logger = Logger(
      [&](const LogRecord& record) { warnings += std::string(record.message); },
      LogLevel::warning);
  Adam training(options, kAdam, 1);
  for (int i = 0; i < 3; ++i) {
    training.run(1);
    static_cast<void>(training.accelerator().save_state());
  }
  const fs::path base = directory / "checkpoints";
  fs::resize_file(base / "checkpoint_2/model.safetensors", 100);
  fs::create_directory(base / "checkpoint_7");
  Adam other(options, kAdam, 2);
  other.accelerator().load_state();
  EXPECT_EQ(other.counter().count, 2);
  EXPECT_NE(warnings.find("model.safetensors has 100 bytes"), std::string::npos)
      << warnings;
  EXPECT_NE(warnings.find("checkpoint_7"), std::string::npos);
}

TEST(LoadState, ComparesChecksumsUnlessToldNotTo) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  Adam training(options, kAdam, 1);
  training.run(1);
  const fs::path out = directory / "out";
  static_cast<void>(training.accelerator().save_state(out));
  for (const char* name :
       {"model.safetensors",
        "optimizer.safetensors",
        "state.safetensors",
        "rank-00000.safetensors"}) {
    flip_a_byte(out / name);
    expect_error<CheckpointError>(
        [&] { training.accelerator().load_state(out); },
        std::string("the contents of ") + name + " have changed");
    flip_a_byte(out / name);
  }
  training.accelerator().load_state(out);
  flip_a_byte(out / "model.safetensors");
  training.accelerator().load_state(out, {.verify = false});
}

TEST(LoadState, FallsBackToTheCheckpointBeforeADamagedOneOnAllRanks) {
  for (const int num_ranks : {1, 2}) {
    const TemporaryDirectory directory;
    std::string warnings;
    std::mutex mutex;
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      AcceleratorOptions options =
          automatic_checkpoints(world, directory.path());
      options.world.logger = Logger(
          [&](const LogRecord& record) {
            const std::lock_guard lock(mutex);
            warnings += std::string(record.message);
          },
          LogLevel::warning);
      Adam training(options, kAdam, 1);
      std::vector<at::Tensor> expected;
      for (int i = 0; i < 3; ++i) {
        if (i == 1) expected = values_of(training.net());
        static_cast<void>(training.accelerator().save_state());
        training.run(1);
      }
      if (world.rank == 0) {
        flip_a_byte(
            directory / "checkpoints/checkpoint_2/optimizer.safetensors");
      }
      training.accelerator().wait_for_everyone();
      training.accelerator().load_state();
      EXPECT_EQ(training.counter().count, 1);
      EXPECT_TRUE(equal(values_of(training.net()), expected));
      training.accelerator().finish();
    });
    EXPECT_NE(
        warnings.find("the contents of optimizer.safetensors have changed"),
        std::string::npos)
        << warnings;
  }
}

TEST(LoadState, ThrowsIfEveryCheckpointIsDamaged) {
  const TemporaryDirectory directory;
  Adam training(automatic_checkpoints(kAlone, directory.path()), kAdam, 1);
  for (int i = 0; i < 2; ++i) {
    const fs::path saved = training.accelerator().save_state().path();
    flip_a_byte(saved / "state.safetensors");
  }
  for (const bool resumes : {true, false}) {
    expect_error<CheckpointError>(
        [&] {
          if (resumes) {
            static_cast<void>(training.accelerator().resume());
          } else {
            training.accelerator().load_state();
          }
        },
        "every checkpoint in");
  }
}

TEST(LoadState, ChecksTheFilesOfHooksBeforeTheyReadThem) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  const Accelerator accelerator(options);
  static_cast<void>(accelerator.checkpoints().register_save_state_pre_hook(
      [](SaveHookContext& context) {
        std::ofstream(context.output_dir / "notes.txt") << "hello";
      }));
  static_cast<void>(accelerator.save_state(directory / "out"));
  flip_a_byte(directory / "out/notes.txt");
  accelerator.load_state(directory / "out");
  static_cast<void>(accelerator.checkpoints().register_load_state_pre_hook(
      [](LoadHookContext&) { ADD_FAILURE(); }));
  expect_error<CheckpointError>(
      [&] { accelerator.load_state(directory / "out"); },
      "the contents of notes.txt have changed");
}

TEST(LoadState, LeavesAModelThatTheCheckpointLacksUnlessStrict) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  Adam training(options, kAdam, 1);
  static_cast<void>(
      training.accelerator().checkpoints().register_save_state_pre_hook(
          [](SaveHookContext& context) { context.save_weights[0] = false; }));
  training.run(2);
  static_cast<void>(training.accelerator().save_state(directory / "out"));
  Adam other(options, kAdam, 2);
  other.run(1);
  const auto before = values_of(other.net());
  expect_error<CheckpointError>(
      [&] { other.accelerator().load_state(directory / "out"); },
      "the checkpoint has no model");
  other.accelerator().load_state(directory / "out", {.strict = false});
  EXPECT_TRUE(equal(values_of(other.net()), before));
  EXPECT_EQ(other.counter().count, 2);
}

TEST(Resume, LoadsTheNewestCheckpointOrNothing) {
  const TemporaryDirectory directory;
  std::vector<at::Tensor> expected;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Adam training(automatic_checkpoints(world, directory.path()), kAdam, 1);
    EXPECT_FALSE(training.accelerator().resume());
    for (const int steps : {2, 1}) {
      training.run(steps);
      static_cast<void>(training.accelerator().save_state());
    }
    if (world.rank == 0) expected = values_of(training.net());
    training.accelerator().finish();
  });
  run_on_ranks(2, [&](const WorldOptions& world) {
    Adam again(automatic_checkpoints(world, directory.path()), kAdam, 2);
    EXPECT_TRUE(again.accelerator().resume());
    EXPECT_EQ(again.counter().count, 3);
    EXPECT_TRUE(equal(values_of(again.net()), expected));
    again.accelerator().finish();
  });
}

TEST(Resume, NeedsAProject) {
  AcceleratorOptions options;
  options.world = kAlone;
  const Accelerator accelerator(options);
  expect_error<CheckpointError>(
      [&] { static_cast<void>(accelerator.resume()); },
      "automatic_checkpoint_naming and a project_dir");
}

}  // namespace load_state_test
}  // namespace accelerate
