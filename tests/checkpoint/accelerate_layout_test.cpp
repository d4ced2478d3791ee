// Checkpoints in the layout of Python's Accelerate, read back by this library;
// tests/cross/cross_training.py has Python's Accelerate resume from them.
#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include "checkpoint/load/source.h"
#include "format/torch/torch_file.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace accelerate_layout_test {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::run_on_ranks;
using testing::TemporaryDirectory;

const WorldOptions kAlone{.rank = 0, .size = 1};
const SaveStateOptions kForPython{.layout = CheckpointLayout::accelerate};

struct Record {
  StateDict state;
  [[nodiscard]] StateDict state_dict() const { return state; }
  void load_state_dict(const StateDict& saved) { state = saved; }
};

// Two layers in two parameter groups; the second group has its own learning
// rate.
template <class Optimizer>
struct Training {
  template <class Options>
  Training(
      const WorldOptions& world,
      const Options& options,
      std::uint64_t seed,
      const ParallelOptions& parallel = {})
      : accelerator([&] {
          torch::manual_seed(seed);
          AcceleratorOptions all;
          all.world = world;
          all.parallel = parallel;
          return all;
        }()),
        net(torch::nn::Linear(4, 8),
            torch::nn::ReLU(),
            torch::nn::Linear(8, 2)),
        optimizer(groups(options), options),
        schedule(optimizer, {.step_size = 2, .gamma = 0.5}),
        prepared(accelerator.prepare(net, optimizer, schedule)) {
    accelerator.register_for_checkpointing(record);
    accelerator.register_for_checkpointing("epoch", epoch);
  }

  template <class Options>
  std::vector<torch::optim::OptimizerParamGroup> groups(Options options) {
    std::vector<torch::optim::OptimizerParamGroup> made;
    made.emplace_back(net[0]->parameters(), std::make_unique<Options>(options));
    options.lr(options.lr() / 2);
    made.emplace_back(net[2]->parameters(), std::make_unique<Options>(options));
    return made;
  }

  // Noise makes the losses depend on the generator, which is shared when ranks
  // are threads.
  at::Tensor input() const {
    const at::Tensor plain = torch::arange(12.0).reshape({3, 4}) / 10 + epoch;
    return is_noisy ? plain + torch::randn({3, 4}) : plain;
  }
  std::vector<double> run(int steps) {
    auto& [model, step, scheduler] = prepared;
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      const at::Tensor loss = model(input()).square().mean();
      accelerator.backward(loss);
      step.step();
      scheduler.step();
      step.zero_grad();
      losses.push_back(loss.item<double>());
      ++epoch;
    }
    return losses;
  }

  Accelerator accelerator;
  torch::nn::Sequential net;
  Optimizer optimizer;
  optim::StepLR schedule;
  decltype(accelerator.prepare(net, optimizer, schedule)) prepared;
  Record record;
  int epoch = 0;
  bool is_noisy = true;
};

std::set<std::string> files_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

template <class Optimizer, class Options>
void expect_exact_round_trip(const Options& options) {
  const TemporaryDirectory directory;
  const fs::path out = directory / "out";
  Training<Optimizer> saved(kAlone, options, 1);
  saved.record.state = {
      {"flag", true},
      {"count", std::int64_t{1} << 40},
      {"ratio", 0.1},
      {"name", std::string("größe")},
      {"whole", std::vector<std::int64_t>{1, -2}},
      {"real", std::vector<double>{0.5, 1e300}},
      {"tensor", torch::arange(6).reshape({2, 3})},
      {"inner", StateDict{{"bfloat16", torch::ones({2}, torch::kBFloat16)}}},
      {"list", std::vector<StateDict>{{{"a", std::int64_t{1}}}}}};
  saved.run(3);
  static_cast<void>(saved.accelerator.save_state(out, kForPython));
  EXPECT_EQ(
      files_in(out),
      (std::set<std::string>{
          "model.safetensors",
          "optimizer.bin",
          "scheduler.bin",
          "random_states_0.pkl",
          "custom_checkpoint_0.pkl",
          "custom_checkpoint_1.pkl"}));
  const auto expected = saved.run(3);

  Training<Optimizer> loaded(kAlone, options, 2);
  loaded.run(1);
  loaded.accelerator.load_state(out);
  EXPECT_EQ(loaded.epoch, 3);
  EXPECT_EQ(loaded.schedule.get_last_lr().size(), 2u);
  EXPECT_EQ(loaded.run(3), expected);
  for (std::size_t i = 0; i < saved.net->parameters().size(); ++i) {
    EXPECT_TRUE(saved.net->parameters()[i].equal(loaded.net->parameters()[i]));
  }
  const StateDict& state = loaded.record.state;
  EXPECT_TRUE(state.get<bool>("flag"));
  EXPECT_EQ(state.get<std::int64_t>("count"), std::int64_t{1} << 40);
  EXPECT_EQ(state.get<double>("ratio"), 0.1);
  EXPECT_EQ(state.get<std::string>("name"), "größe");
  EXPECT_THAT(
      state.get<std::vector<std::int64_t>>("whole"), ElementsAre(1, -2));
  EXPECT_THAT(state.get<std::vector<double>>("real"), ElementsAre(0.5, 1e300));
  EXPECT_TRUE(
      state.get<at::Tensor>("tensor").equal(torch::arange(6).reshape({2, 3})));
  EXPECT_EQ(
      state.get<StateDict>("inner").get<at::Tensor>("bfloat16").scalar_type(),
      torch::kBFloat16);
  EXPECT_EQ(
      state.get<std::vector<StateDict>>("list").at(0).get<std::int64_t>("a"),
      1);
}

TEST(AccelerateLayout, IsReadBackExactlyWithAdamW) {
  expect_exact_round_trip<torch::optim::AdamW>(
      torch::optim::AdamWOptions(0.05).amsgrad(true));
  expect_exact_round_trip<optim::AdamW>(torch::optim::AdamWOptions(0.05));
}
TEST(AccelerateLayout, IsReadBackExactlyWithAdam) {
  expect_exact_round_trip<optim::Adam>(
      torch::optim::AdamOptions(0.05).betas({0.8, 0.99}));
}
TEST(AccelerateLayout, IsReadBackExactlyWithSGD) {
  expect_exact_round_trip<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  expect_exact_round_trip<optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
}
TEST(AccelerateLayout, IsReadBackExactlyWithAdagrad) {
  expect_exact_round_trip<torch::optim::Adagrad>(
      torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.25));
}
TEST(AccelerateLayout, IsReadBackExactlyWithRMSprop) {
  expect_exact_round_trip<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}

using AdamWTraining = Training<torch::optim::AdamW>;
const torch::optim::AdamWOptions kAdamW(0.05);

// Returns the value under a key of a dictionary in a torch.save file.
detail::Pickle::Value find(
    const detail::Pickle::Value& dict,
    const std::string& key) {
  for (std::size_t i = 0; i < dict.size(); ++i) {
    if (dict.key(i).kind() == detail::Pickle::Kind::text &&
        dict.key(i).text() == key) {
      return dict.value(i);
    }
  }
  throw std::out_of_range(key);
}

TEST(AccelerateLayout, NumbersParametersAndKeepsStepsAsPyTorchDoes) {
  const TemporaryDirectory directory;
  AdamWTraining training(kAlone, kAdamW, 1);
  training.run(3);
  static_cast<void>(
      training.accelerator.save_state(directory / "out", kForPython));
  const detail::TorchFile file(directory / "out/optimizer.bin");
  const auto state = find(file.root(), "state");
  ASSERT_EQ(state.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(state.key(i).integer(), static_cast<std::int64_t>(i));
    const auto step = file.tensor(find(state.value(i), "step"));
    ASSERT_TRUE(step);
    EXPECT_EQ(step->dtype, safetensors::Dtype::F32);
    EXPECT_TRUE(step->sizes.empty());
  }
  const auto groups = find(file.root(), "param_groups");
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(find(groups.item(1), "params").item(0).integer(), 2);
  EXPECT_EQ(find(groups.item(0), "betas").kind(), detail::Pickle::Kind::tuple);
  EXPECT_NE(find(groups.item(0), "decoupled_weight_decay").integer(), 0);
}

std::vector<torch::optim::OptimizerParamGroup> two_groups(
    torch::nn::Linear& net) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const at::Tensor& parameter : net->parameters()) {
    groups.emplace_back(
        std::vector<at::Tensor>{parameter},
        std::make_unique<torch::optim::SGDOptions>(0.5 / (groups.size() + 1)));
  }
  return groups;
}

// Two optimizers; the first has OneCycleLR after a warm-up, the second
// CosineAnnealingWarmRestarts.
struct Scheduled {
  torch::nn::Linear first{2, 1}, second{2, 1};
  torch::optim::SGD one{
      two_groups(first),
      torch::optim::SGDOptions(0.5).momentum(0.5)};
  torch::optim::SGD other{two_groups(second), torch::optim::SGDOptions(0.5)};
  optim::SequentialLR one_cycle{
      one,
      {2},
      optim::ConstantLR({.factor = 0.5, .total_iters = 2}),
      optim::OneCycleLR(
          {.max_lr = {0.5, 1},
           .total_steps = 8,
           .base_momentum = 0.75,
           .max_momentum = 0.875,
           .div_factor = 4,
           .final_div_factor = 8})};
  optim::CosineAnnealingWarmRestarts restarts{
      other,
      {.T_0 = 2, .T_mult = 2, .eta_min = 0.125}};
  Accelerator accelerator{{.world = kAlone}};
  decltype(accelerator.prepare(first, second, other, one, restarts, one_cycle))
      prepared =
          accelerator.prepare(first, second, other, one, restarts, one_cycle);
};

TEST(AccelerateLayout, PutsEntriesOfSchedulesIntoTheGroupsOfTheirOptimizer) {
  const TemporaryDirectory directory;
  Scheduled training;
  for (int i = 0; i < 3; ++i) {
    std::get<4>(training.prepared).step();
    std::get<5>(training.prepared).step();
  }
  static_cast<void>(
      training.accelerator.save_state(directory / "out", kForPython));
  const auto entry = [&](const char* file, std::size_t group, const char* key) {
    const detail::TorchFile saved(directory / "out" / file);
    return find(find(saved.root(), "param_groups").item(group), key).real();
  };
  // "optimizer" is `other`, which was prepared first.
  EXPECT_EQ(entry("optimizer.bin", 0, "initial_lr"), 0.5);
  EXPECT_EQ(entry("optimizer.bin", 1, "initial_lr"), 0.25);
  EXPECT_THROW(entry("optimizer.bin", 0, "max_lr"), std::out_of_range);
  EXPECT_EQ(entry("optimizer_1.bin", 0, "initial_lr"), 0.125);
  EXPECT_EQ(entry("optimizer_1.bin", 1, "initial_lr"), 0.25);
  EXPECT_EQ(entry("optimizer_1.bin", 0, "max_lr"), 0.5);
  EXPECT_EQ(entry("optimizer_1.bin", 1, "max_lr"), 1);
  EXPECT_EQ(entry("optimizer_1.bin", 0, "min_lr"), 0.015625);
  EXPECT_EQ(entry("optimizer_1.bin", 1, "min_lr"), 0.03125);
  for (const std::size_t group : {0, 1}) {
    EXPECT_EQ(entry("optimizer_1.bin", group, "max_momentum"), 0.875);
    EXPECT_EQ(entry("optimizer_1.bin", group, "base_momentum"), 0.75);
  }
  const detail::TorchFile schedule(directory / "out/scheduler.bin");
  EXPECT_EQ(find(schedule.root(), "T_0").integer(), 2);
  EXPECT_EQ(find(schedule.root(), "T_mult").integer(), 2);
  EXPECT_EQ(find(schedule.root(), "eta_min").real(), 0.125);
  EXPECT_EQ(find(schedule.root(), "T_cur").real(), 1);
  EXPECT_EQ(find(schedule.root(), "T_i").real(), 4);

  Scheduled loaded;
  loaded.accelerator.load_state(directory / "out");
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(loaded.one_cycle.get_last_lr(), training.one_cycle.get_last_lr());
    EXPECT_EQ(loaded.restarts.get_last_lr(), training.restarts.get_last_lr());
    for (Scheduled* each : {&training, &loaded}) {
      std::get<4>(each->prepared).step();
      std::get<5>(each->prepared).step();
    }
  }
}

TEST(AccelerateLayout, GathersShardedModelsAndOptimizers) {
  const TemporaryDirectory directory;
  ParallelOptions sharded;
  sharded.deepspeed = DeepSpeedOptions{.zero_stage = 3};
  std::vector<at::Tensor> full;
  std::vector<double> rest;
  run_on_ranks(2, [&](const WorldOptions& world) {
    AdamWTraining training(world, kAdamW, 1, sharded);
    training.is_noisy = false;
    training.run(3);
    static_cast<void>(training.accelerator.save_state(
        directory / "out",
        {.asynchronous = true, .layout = CheckpointLayout::accelerate}));
    const auto weights = training.accelerator.get_state_dict(
        std::get<0>(training.prepared), {.rank0_only = true});
    for (const auto& [name, tensor] : weights) full.push_back(tensor);
    const auto own = training.run(2);
    if (world.rank == 0) rest = own;
    training.accelerator.finish();
  });
  EXPECT_TRUE(fs::exists(directory / "out/random_states_1.pkl"));
  EXPECT_FALSE(fs::exists(directory / "out/state.safetensors"));
  AdamWTraining alone(kAlone, kAdamW, 2);
  alone.accelerator.load_state(directory / "out");
  ASSERT_EQ(full.size(), 4u);
  for (std::size_t i = 0; i < full.size(); ++i) {
    EXPECT_TRUE(alone.net->parameters()[i].equal(full[i])) << i;
  }
  EXPECT_EQ(alone.optimizer.state().size(), 4u);
  run_on_ranks(2, [&](const WorldOptions& world) {
    AdamWTraining training(world, kAdamW, 3, sharded);
    training.is_noisy = false;
    training.accelerator.load_state(directory / "out");
    EXPECT_EQ(training.epoch, 3);
    const auto own = training.run(2);
    if (world.rank == 0) {
      EXPECT_EQ(own, rest);
    }
    training.accelerator.finish();
  });
}

TEST(AccelerateLayout, WritesTorchFilesOfModelsWhenAsked) {
  const TemporaryDirectory directory;
  AdamWTraining training(kAlone, kAdamW, 1);
  static_cast<void>(training.accelerator.save_state(
      directory / "out",
      {.safe_serialization = false, .layout = CheckpointLayout::accelerate}));
  EXPECT_TRUE(files_in(directory / "out").contains("pytorch_model.bin"));
  EXPECT_FALSE(files_in(directory / "out").contains("model.safetensors"));
  AdamWTraining loaded(kAlone, kAdamW, 2);
  loaded.accelerator.load_state(directory / "out");
  EXPECT_TRUE(loaded.net->parameters()[0].equal(training.net->parameters()[0]));
}

TEST(AccelerateLayout, CountsTowardsTheLimitAndIsReplaced) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  options.project_configuration = {
      .project_dir = directory.path().string(),
      .automatic_checkpoint_naming = true,
      .total_limit = 2};
  const Accelerator accelerator(options);
  for (int i = 0; i < 4; ++i) {
    static_cast<void>(accelerator.save_state(kForPython));
  }
  EXPECT_EQ(
      files_in(directory / "checkpoints"),
      (std::set<std::string>{"checkpoint_2", "checkpoint_3"}));
  static_cast<void>(accelerator.save_state(directory / "out", kForPython));
  static_cast<void>(accelerator.save_state(directory / "out", kForPython));
  static_cast<void>(accelerator.save_state(directory / "out"));
  static_cast<void>(accelerator.save_state(directory / "out", kForPython));
  EXPECT_EQ(
      files_in(directory / "out"),
      (std::set<std::string>{"random_states_0.pkl"}));
}

TEST(AccelerateLayout, RefusesOptimizersThatPythonDoesNotHave) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  const Accelerator accelerator(options);
  torch::nn::Linear net(2, 2);
  torch::optim::LBFGS lbfgs(net->parameters());
  auto prepared = accelerator.prepare(net, lbfgs);
  expect_error<CheckpointError>(
      [&] {
        static_cast<void>(
            accelerator.save_state(directory / "out", kForPython));
      },
      "\"optimizer\" is of class LBFGS");
  EXPECT_FALSE(fs::exists(directory / "out"));
}

// Loads a checkpoint that was saved with another optimizer.
template <class Saved, class Loaded, class SavedOptions, class LoadedOptions>
void load_with_another(
    const SavedOptions& saved_with,
    const LoadedOptions& loaded_with) {
  const TemporaryDirectory directory;
  Training<Saved> saved(kAlone, saved_with, 1);
  saved.run(1);
  static_cast<void>(
      saved.accelerator.save_state(directory / "out", kForPython));
  Training<Loaded> loaded(kAlone, loaded_with, 2);
  loaded.accelerator.load_state(directory / "out");
}

TEST(AccelerateLayout, IsRefusedByOptimizersOfAnotherClass) {
  using namespace torch::optim;
  expect_error<CheckpointError>(
      [] { load_with_another<SGD, AdamW>(SGDOptions(0.1), AdamWOptions()); },
      "no option \"amsgrad\", which AdamW has");
  expect_error<CheckpointError>(
      [] {
        load_with_another<RMSprop, Adagrad>(
            RMSpropOptions(0.1), AdagradOptions());
      },
      "no option \"initial_accumulator_value\", which Adagrad has");
}

TEST(AccelerateLayout, IsRefusedByAnAdamThatDecaysWeightsDifferently) {
  using namespace torch::optim;
  expect_error<CheckpointError>(
      [] { load_with_another<AdamW, Adam>(AdamWOptions(), AdamOptions()); },
      "decayed weights independently of the gradients, which Adam does not; "
      "prepare AdamW");
  expect_error<CheckpointError>(
      [] {
        load_with_another<Adam, AdamW>(
            AdamOptions().weight_decay(0.1), AdamWOptions());
      },
      "decayed weights through the gradients, which AdamW does not; prepare "
      "Adam");
  // Without weight decay they are the same algorithm.
  load_with_another<Adam, AdamW>(AdamOptions(), AdamWOptions());
}

TEST(AccelerateLayout, IsRefusedByOptimizersOfClassesThatPythonDoesNotHave) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  torch::nn::Linear net(2, 2);
  {
    const Accelerator accelerator(options);
    torch::optim::AdamW adamw(net->parameters());
    auto [model, step] = accelerator.prepare(net, adamw);
    accelerator.backward(model(torch::ones({1, 2})).sum());
    step.step();
    static_cast<void>(accelerator.save_state(directory / "out", kForPython));
  }
  const Accelerator accelerator(options);
  optim::AdaLomo lomo(net->parameters());
  auto prepared = accelerator.prepare(net, lomo);
  expect_error<CheckpointError>(
      [&] { accelerator.load_state(directory / "out"); },
      "cannot take the state of a Python optimizer");
}

TEST(AccelerateLayout, SaysOnceWhatItLeavesOut) {
  const TemporaryDirectory directory;
  std::vector<std::string> warnings;
  AcceleratorOptions options;
  options.world = kAlone;
  options.world.logger = Logger(
      [&](const LogRecord& record) { warnings.emplace_back(record.message); },
      LogLevel::warning);
  const Accelerator accelerator(options);
  auto loader = accelerator.prepare(DataLoader(
      TensorDataset(torch::arange(4), torch::arange(4)), {.batch_size = 2}));
  for (int i = 0; i < 2; ++i) {
    static_cast<void>(accelerator.save_state(directory / "out", kForPython));
  }
  EXPECT_THAT(
      warnings, ElementsAre(HasSubstr("leave out positions of loaders")));
}

}  // namespace accelerate_layout_test
}  // namespace accelerate
