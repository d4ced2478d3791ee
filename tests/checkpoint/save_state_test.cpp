#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include <atomic>
#include <fstream>
#include <latch>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "support/expect_error.h"
#include "support/recorded_disk.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"
#include "train/elastic/checkpoints_of.h"
#include "train/session.h"

namespace accelerate {
namespace save_state_test {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::run_on_ranks;
using testing::TemporaryDirectory;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(torch::dropout(norm(first(x)), 0.25, is_training()));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

struct Counter {
  std::int64_t count = 0;
  double ratio = 0;
  std::string name;
  [[nodiscard]] StateDict state_dict() const {
    return {{"count", count}, {"ratio", ratio}, {"name", name}};
  }
  void load_state_dict(const StateDict& state) {
    count = state.get<std::int64_t>("count");
    ratio = state.get<double>("ratio");
    name = state.get<std::string>("name");
  }
};

// A short training in which every object has a state.
template <class Optimizer, class Options>
class Training {
 public:
  Training(
      AcceleratorOptions options,
      const Options& optimizer_options,
      std::uint64_t seed)
      : accelerator_([&] {
          // Seeds before anything is created, the same on every rank.
          torch::manual_seed(seed);
          return std::move(options);
        }()),
        net_(),
        optimizer_(net_->parameters(), optimizer_options),
        schedule_(optimizer_, {.step_size = 3, .gamma = 0.5}),
        prepared_(accelerator_.prepare(
            net_,
            optimizer_,
            schedule_,
            DataLoader(
                TensorDataset(
                    torch::arange(96, torch::kFloat).reshape({24, 4}) / 50,
                    torch::arange(24) % 2),
                {.batch_size = 2, .shuffle = true}))) {
    accelerator_.register_for_checkpointing(counter_);
  }

  const Accelerator& accelerator() const { return accelerator_; }
  Counter& counter() { return counter_; }
  Net& net() { return net_; }
  auto& loader() { return std::get<3>(prepared_); }

  // Makes `steps` steps and returns the losses. The loader keeps its position.
  std::vector<double> run(
      int steps,
      int save_after = 0,
      const std::function<void()>& save = nullptr) {
    auto& [model, optimizer, schedule, loader] = prepared_;
    std::vector<double> losses;
    while (steps > 0) {
      for (auto& [x, y] : loader) {
        const auto micro_step = accelerator_.accumulate(model);
        const at::Tensor loss =
            torch::nn::functional::cross_entropy(model(x), y);
        accelerator_.backward(loss);
        optimizer.step();
        schedule.step();
        optimizer.zero_grad();
        losses.push_back(loss.item<double>());
        ++counter_.count;
        counter_.ratio += losses.back();
        counter_.name += "x";
        if (static_cast<int>(losses.size()) == save_after) save();
        if (--steps == 0) break;
      }
    }
    return losses;
  }

 private:
  Accelerator accelerator_;
  Net net_;
  Optimizer optimizer_;
  optim::StepLR schedule_;
  decltype(accelerator_.prepare(
      net_,
      optimizer_,
      schedule_,
      std::declval<DataLoader<TensorDataset<2>>>())) prepared_;
  Counter counter_;
};

AcceleratorOptions automatic(
    const WorldOptions& world,
    const fs::path& directory,
    std::optional<int> limit = std::nullopt) {
  AcceleratorOptions options;
  options.world = world;
  options.project_configuration = {
      .project_dir = directory.string(),
      .automatic_checkpoint_naming = true,
      .total_limit = limit};
  return options;
}

const WorldOptions kAlone{.rank = 0, .size = 1};

std::vector<at::Tensor> values_of(Net& net) {
  std::vector<at::Tensor> values;
  for (const auto& each : net->parameters()) values.push_back(each.clone());
  for (const auto& each : net->buffers()) values.push_back(each.clone());
  return values;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return true;
}

template <class Optimizer, class Options>
void expect_exact_resume(const Options& options, bool asynchronous = false) {
  const TemporaryDirectory directory;
  using T = Training<Optimizer, Options>;
  T uninterrupted(automatic(kAlone, directory.path()), options, 1);
  // Saves in the middle of the second pass.
  const auto losses = uninterrupted.run(20, 15, [&] {
    const SaveTicket ticket =
        uninterrupted.accelerator().save_state({.asynchronous = asynchronous});
    EXPECT_EQ(ticket.path().filename(), "checkpoint_0");
  });
  uninterrupted.accelerator().finish();
  T resumed(automatic(kAlone, directory.path()), options, 2);
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

using Adam = Training<optim::Adam, torch::optim::AdamOptions>;
const torch::optim::AdamOptions kAdam(0.05);

// The ranks of a test are threads, which share the generator of the CPU: what
// they draw from it depends on their order.
void without_dropout(Net& net) { net->eval(); }

TEST(SaveState, OnManyRanksGoesOnExactlyAndOnFewerAndMoreFromTheSameState) {
  const TemporaryDirectory directory;
  constexpr std::size_t kSteps = 10, kSaved = 8;
  std::vector<double> losses[2];
  std::vector<at::Tensor> at_save, at_end;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Adam saved(automatic(world, directory.path()), kAdam, 1);
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
    Adam resumed(automatic(world, directory.path()), kAdam, 2);
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
    Adam resumed(automatic(world, directory.path()), kAdam, 2);
    resumed.accelerator().load_state();
    EXPECT_EQ(resumed.counter().count, static_cast<std::int64_t>(kSaved));
    EXPECT_TRUE(equal(values_of(resumed.net()), at_save));
    resumed.run(1);
    resumed.accelerator().finish();
  });
  Adam alone(automatic(kAlone, directory.path()), kAdam, 2);
  alone.accelerator().load_state();
  EXPECT_EQ(alone.counter().count, static_cast<std::int64_t>(kSaved));
  EXPECT_TRUE(equal(values_of(alone.net()), at_save));
}

TEST(SaveState, WithPowerSgdOnTwoRanksGoesOnExactly) {
  const TemporaryDirectory directory;
  std::vector<at::Tensor> at_end;
  const auto options_of = [&](const WorldOptions& world) {
    AcceleratorOptions options = automatic(world, directory.path());
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

TEST(SaveState, KeepsTotalLimitAndContinuesNumbering) {
  const TemporaryDirectory directory;
  Adam training(automatic(kAlone, directory.path(), 2), kAdam, 1);
  for (int i = 0; i < 4; ++i) {
    training.run(1);
    EXPECT_EQ(
        training.accelerator().save_state().path().filename(),
        "checkpoint_" + std::to_string(i));
  }
  EXPECT_FALSE(fs::exists(directory / "checkpoints/checkpoint_1"));
  EXPECT_TRUE(fs::exists(directory / "checkpoints/checkpoint_2"));
  Adam next(automatic(kAlone, directory.path(), 2), kAdam, 1);
  next.accelerator().load_state();
  EXPECT_EQ(next.counter().count, 4);
  EXPECT_EQ(next.accelerator().save_state().path().filename(), "checkpoint_4");
  next.accelerator().set_iteration(4);
  expect_error<ConfigError>(
      [&] { static_cast<void>(next.accelerator().save_state()); },
      "already exists");
}

TEST(SaveState, GoesWhereTheProjectSays) {
  const TemporaryDirectory directory;
  const std::string one = (directory / "one").string();
  const std::string other = (directory / "other").string();
  const auto path_with = [&](ProjectConfiguration project) {
    AcceleratorOptions options;
    options.world = kAlone;
    options.project_dir = one;
    project.automatic_checkpoint_naming = true;
    options.project_configuration = project;
    const Accelerator accelerator(options);
    return accelerator.save_state().path().string();
  };
  EXPECT_EQ(path_with({}), one + "/checkpoints/checkpoint_0");
  EXPECT_EQ(path_with({.iteration = 7}), one + "/checkpoints/checkpoint_7");
  EXPECT_EQ(
      path_with({.project_dir = other}), other + "/checkpoints/checkpoint_0");
}

TEST(SaveState, WritesTorchFilesOfModelsOnRequest) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  Adam training(options, kAdam, 1);
  training.run(1);
  training.accelerator().save_state(
      directory / "out", {.safe_serialization = false});
  EXPECT_TRUE(fs::exists(directory / "out/pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(directory / "out/model.safetensors"));
  Adam other(options, kAdam, 2);
  other.accelerator().load_state(directory / "out");
  EXPECT_TRUE(equal(values_of(other.net()), values_of(training.net())));
}

// Ranks 0 and 1 on one node, 2 and 3 on another with a disk of its own.
TEST(SaveState, WritesOnEachNodeOnRequest) {
  for (const bool is_per_node : {true, false}) {
    const TemporaryDirectory directory;
    const auto train = [&](std::uint64_t seed, auto&& use) {
      run_on_ranks(4, [&](WorldOptions world) {
        world.local_rank = *world.rank % 2;
        world.local_size = 2;
        AcceleratorOptions options = automatic(
            world, directory / ("node" + std::to_string(*world.rank / 2)));
        options.project_configuration.save_on_each_node = is_per_node;
        Adam training(options, kAdam, seed);
        without_dropout(training.net());
        use(training);
        training.accelerator().finish();
      });
    };
    std::vector<at::Tensor> saved;
    train(1, [&](Adam& training) {
      training.run(2);
      static_cast<void>(training.accelerator().save_state());
      training.accelerator().save(
          torch::ones({1}),
          fs::path(training.accelerator().project_dir()) / "one.pt");
      if (training.accelerator().is_main_process())
        saved = values_of(training.net());
    });
    for (const char* name :
         {"checkpoints/checkpoint_0/model.safetensors", "one.pt"}) {
      EXPECT_TRUE(fs::exists(directory / "node0" / name)) << name;
      EXPECT_EQ(fs::exists(directory / "node1" / name), is_per_node) << name;
    }
    train(2, [&](Adam& training) {
      training.accelerator().load_state();
      EXPECT_EQ(training.counter().count, 2);
      EXPECT_TRUE(equal(values_of(training.net()), saved));
    });
  }
}

// A disk on which other threads than the one that made it create files only
// after open().
class HeldDisk final : public testing::FailingDisk {
 public:
  HeldDisk() : FailingDisk(std::numeric_limits<std::size_t>::max(), 0, false) {}
  void open() { opened_.count_down(); }
  [[nodiscard]] bool has_other_writers() const { return has_other_writers_; }

  std::unique_ptr<detail::OutputFile> create(const fs::path& path) override {
    if (std::this_thread::get_id() != owner_) {
      has_other_writers_ = true;
      opened_.wait();
    }
    return FailingDisk::create(path);
  }

 private:
  const std::thread::id owner_ = std::this_thread::get_id();
  std::latch opened_{1};
  std::atomic<bool> has_other_writers_ = false;
};

// Gives access to the disk of its checkpoints.
struct OpenAccelerator : Accelerator {
  using Accelerator::Accelerator;
  void use(std::shared_ptr<HeldDisk> disk) const {
    session_->checkpoints->disk = std::move(disk);
  }
};

TEST(SaveState, ReturnsBeforeItsFilesAreWrittenIfAsynchronous) {
  struct Case {
    SaveStateOptions options;
    bool is_in_background;
  };
  for (const auto& [options, is_in_background] :
       {Case{{}, false},
        Case{{.asynchronous = true}, true},
        // A byte for each of three weights does not suffice.
        Case{{.asynchronous = true, .memory_limit = 3}, false},
        Case{{.asynchronous = true, .memory_limit = 1 << 20}, true}}) {
    const TemporaryDirectory directory;
    AcceleratorOptions all;
    all.world = kAlone;
    const OpenAccelerator accelerator(all);
    torch::nn::Linear net(2, 1);
    const auto model = accelerator.prepare(net);
    const auto disk = std::make_shared<HeldDisk>();
    accelerator.use(disk);
    const SaveTicket ticket =
        accelerator.save_state(directory / "first", options);
    EXPECT_EQ(ticket.is_done(), !is_in_background);
    // Another save leaves one that is under way alone.
    const SaveTicket other = accelerator.save_state(
        directory / "second", {.when_busy = WhenBusy::skip});
    EXPECT_EQ(other.was_skipped(), is_in_background);
    EXPECT_EQ(fs::exists(directory / "second"), !is_in_background);
    EXPECT_FALSE(ticket.was_skipped());
    disk->open();
    ticket.wait();
    EXPECT_TRUE(ticket.is_done());
    EXPECT_EQ(disk->has_other_writers(), is_in_background);
    // Waits for one that is under way.
    const SaveTicket third =
        accelerator.save_state(directory / "third", {.asynchronous = true});
    const SaveTicket fourth = accelerator.save_state(directory / "fourth");
    EXPECT_TRUE(third.is_done());
    EXPECT_FALSE(fourth.was_skipped());
    EXPECT_TRUE(fs::exists(directory / "third/model.safetensors"));
  }
}

TEST(SaveState, KeepsTotalLimitExactlyWhenSavesFollowEachOther) {
  const TemporaryDirectory directory;
  std::string warnings;
  AcceleratorOptions options = automatic(kAlone, directory.path(), 2);
  options.world.logger = Logger(
      [&](const LogRecord& record) { warnings += std::string(record.message); },
      LogLevel::warning);
  Adam training(options, kAdam, 1);
  for (int i = 0; i < 8; ++i) {
    static_cast<void>(
        training.accelerator().save_state({.asynchronous = true}));
  }
  training.accelerator().finish();
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory / "checkpoints")) {
    names.insert(entry.path().filename().string());
  }
  EXPECT_EQ(names, (std::set<std::string>{"checkpoint_6", "checkpoint_7"}));
  EXPECT_EQ(warnings, "");
}

TEST(SaveState, RefusesNumbersThatNoCheckpointCanFollow) {
  const TemporaryDirectory directory;
  const fs::path base = directory / "checkpoints";
  fs::create_directories(base / "checkpoint_9223372036854775807");
  Adam training(automatic(kAlone, directory.path()), kAdam, 1);
  expect_error<ConfigError>(
      [&] { static_cast<void>(training.accelerator().save_state()); },
      "checkpoint_9223372036854775807 has the highest number there is");
  training.accelerator().set_iteration(3);
  EXPECT_EQ(
      training.accelerator().save_state().path().filename(), "checkpoint_3");
  for (const std::int64_t number :
       {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    training.accelerator().set_iteration(number);
    expect_error<ConfigError>(
        [&] { static_cast<void>(training.accelerator().save_state()); },
        "iteration is " + std::to_string(number));
  }
}

TEST(SaveState, NamesAnotherProgramThatTookItsNumber) {
  const TemporaryDirectory directory;
  Adam one(automatic(kAlone, directory.path()), kAdam, 1);
  Adam other(automatic(kAlone, directory.path()), kAdam, 2);
  static_cast<void>(one.accelerator().save_state());
  static_cast<void>(other.accelerator().save_state());
  expect_error<ConfigError>(
      [&] { static_cast<void>(one.accelerator().save_state()); },
      "give each program a project_dir of its own");
}

TEST(SaveState, ReplacesItsOwnDirectoryButNoOther) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  Adam training(options, kAdam, 1);
  expect_error<ConfigError>(
      [&] { static_cast<void>(training.accelerator().save_state()); },
      "needs a directory");
  const fs::path out = directory / "out";
  static_cast<void>(training.accelerator().save_state(out));
  std::ofstream(out / "note.txt") << "mine";
  training.run(3);
  static_cast<void>(training.accelerator().save_state(out));
  EXPECT_TRUE(fs::exists(out / "note.txt"));
  Adam other(options, kAdam, 2);
  other.accelerator().load_state(out);
  EXPECT_EQ(other.counter().count, 3);

  fs::create_directory(directory / "precious");
  std::ofstream(directory / "precious/thesis.tex") << "years";
  expect_error<CheckpointError>(
      [&] {
        static_cast<void>(
            training.accelerator().save_state(directory / "precious"));
      },
      "is not a checkpoint (it holds thesis.tex)");
  EXPECT_TRUE(fs::exists(directory / "precious/thesis.tex"));
  fs::create_directory(out / "plots");
  expect_error<CheckpointError>(
      [&] { static_cast<void>(training.accelerator().save_state(out)); },
      "move it away first");
}

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
          "the state is that of Adam, the optimizer is SGD",
          "1 schedulers, this program has 0",
          "1 loaders, this program has 0",
          "1 objects, this program has 0",
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

TEST(Accelerator, RefusesAProjectThatCannotKeepACheckpoint) {
  AcceleratorOptions options;
  options.world = kAlone;
  options.project_configuration = {.total_limit = 0, .iteration = -1};
  expect_error<ConfigError>(
      [&] { const Accelerator refused(options); },
      "[checkpoint] total_limit is 0; it is at least 1");
  expect_error<ConfigError>(
      [&] { const Accelerator refused(options); }, "iteration is -1");
}

TEST(LoadState, PassesOverTornCheckpointsWithAWarning) {
  const TemporaryDirectory directory;
  std::string warnings;
  AcceleratorOptions options = automatic(kAlone, directory.path());
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

// Changes a byte near the end of a file.
void flip_a_byte(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-3, std::ios::end);
  const int before = file.get();
  file.seekp(-3, std::ios::end);
  file.put(static_cast<char>(before ^ 0x11));
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
      AcceleratorOptions options = automatic(world, directory.path());
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
  Adam training(automatic(kAlone, directory.path()), kAdam, 1);
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
  static_cast<void>(
      accelerator.register_save_state_pre_hook([](SaveHookContext& context) {
        std::ofstream(context.output_dir / "notes.txt") << "hello";
      }));
  static_cast<void>(accelerator.save_state(directory / "out"));
  flip_a_byte(directory / "out/notes.txt");
  accelerator.load_state(directory / "out");
  static_cast<void>(accelerator.register_load_state_pre_hook(
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
  static_cast<void>(training.accelerator().register_save_state_pre_hook(
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
    Adam training(automatic(world, directory.path()), kAdam, 1);
    EXPECT_FALSE(training.accelerator().resume());
    for (const int steps : {2, 1}) {
      training.run(steps);
      static_cast<void>(training.accelerator().save_state());
    }
    if (world.rank == 0) expected = values_of(training.net());
    training.accelerator().finish();
  });
  run_on_ranks(2, [&](const WorldOptions& world) {
    Adam again(automatic(world, directory.path()), kAdam, 2);
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

TEST(RegisterForCheckpointing, RestoresVariablesByName) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  const Accelerator accelerator(options);
  struct Values {
    int epoch = 3;
    std::uint8_t small = 200;
    std::int64_t large = std::int64_t{1} << 60;
    float ratio = 0.1F;
    double exact = 1e-300;
    bool flag = true;
    std::string name = "name";
    at::Tensor tensor = torch::arange(3);
    at::Tensor grows = torch::arange(4);
  } values;
  accelerator.register_for_checkpointing("epoch", values.epoch);
  accelerator.register_for_checkpointing("small", values.small);
  accelerator.register_for_checkpointing("large", values.large);
  accelerator.register_for_checkpointing("ratio", values.ratio);
  accelerator.register_for_checkpointing("exact", values.exact);
  accelerator.register_for_checkpointing("flag", values.flag);
  accelerator.register_for_checkpointing("name", values.name);
  accelerator.register_for_checkpointing("tensor", values.tensor);
  accelerator.register_for_checkpointing("grows", values.grows);
  static_cast<void>(accelerator.save_state(directory / "out"));
  const Values saved = values;
  const at::Tensor same_memory = values.tensor;
  values = {0, 0, 0, 0, 0, false, "", same_memory, torch::zeros({2})};
  same_memory.zero_();
  accelerator.load_state(directory / "out");
  EXPECT_EQ(values.epoch, saved.epoch);
  EXPECT_EQ(values.small, saved.small);
  EXPECT_EQ(values.large, saved.large);
  EXPECT_EQ(values.ratio, saved.ratio);
  EXPECT_EQ(values.exact, saved.exact);
  EXPECT_EQ(values.flag, saved.flag);
  EXPECT_EQ(values.name, saved.name);
  EXPECT_TRUE(same_memory.equal(torch::arange(3)));
  EXPECT_TRUE(values.grows.equal(torch::arange(4)));
}

TEST(RegisterForCheckpointing, RefusesValuesThatDoNotFit) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = kAlone;
  int large = 300;
  const Accelerator one(options);
  one.register_for_checkpointing("count", large);
  static_cast<void>(one.save_state(directory / "out"));
  std::uint8_t small = 0;
  const Accelerator other(options);
  other.register_for_checkpointing("count", small);
  expect_error<CheckpointError>(
      [&] { other.load_state(directory / "out"); },
      "\"count\" was saved as 300");
  std::uint64_t huge = ~std::uint64_t{0};
  const Accelerator third(options);
  third.register_for_checkpointing("huge", huge);
  expect_error<CheckpointError>(
      [&] { static_cast<void>(third.save_state(directory / "other")); },
      "the value of \"huge\" is above 2^63 - 1");
}

TEST(SaveState, RunsHooksOnEveryRankAndIncludesTheirFiles) {
  const TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Adam training(automatic(world, directory.path()), kAdam, 1);
    const Accelerator& accelerator = training.accelerator();
    const HookHandle handle =
        accelerator.register_save_state_pre_hook([&](SaveHookContext& context) {
          EXPECT_EQ(context.models.size(), 1u);
          context.save_weights[0] = false;
          const fs::path mine =
              context.output_dir / ("of_" + std::to_string(*world.rank));
          fs::create_directory(mine);
          std::ofstream(mine / "notes.txt") << "rank " << *world.rank;
        });
    static_cast<void>(accelerator.save_state());
    int num_calls = 0;
    const HookHandle load =
        accelerator.register_load_state_pre_hook([&](LoadHookContext& context) {
          ++num_calls;
          EXPECT_TRUE(fs::exists(context.input_dir / "of_1/notes.txt"));
          context.load_weights[0] = false;
        });
    accelerator.load_state({.verify = true});
    EXPECT_EQ(num_calls, 1);
    handle.remove();
    load.remove();
    static_cast<void>(accelerator.save_state());
    accelerator.load_state();
    EXPECT_EQ(num_calls, 1);
    accelerator.finish();
  });
  const fs::path base = directory / "checkpoints";
  EXPECT_FALSE(fs::exists(base / "checkpoint_0/model.safetensors"));
  EXPECT_TRUE(fs::exists(base / "checkpoint_1/model.safetensors"));
}

TEST(SaveState, FailsOnAllRanksIfOneMakesAnotherCall) {
  const TemporaryDirectory directory;
  expect_error<DistributedError>(
      [&] {
        run_on_ranks(2, [&](const WorldOptions& world) {
          Adam training(automatic(world, directory.path()), kAdam, 1);
          if (world.rank == 0) {
            static_cast<void>(training.accelerator().save_state());
          } else {
            training.accelerator().load_state();
          }
        });
      },
      "rank 1: load_state");
}

TEST(SaveState, FailsIfOnlyOneRankCallsIt) {
  const TemporaryDirectory directory;
  expect_error<DistributedError>(
      [&] {
        run_on_ranks(2, [&](const WorldOptions& world) {
          Adam training(automatic(world, directory.path()), kAdam, 1);
          // A common mistake: only the main process saves.
          training.run(3, 2, [&] {
            if (training.accelerator().is_main_process()) {
              training.accelerator().save_state();
            }
          });
        });
      },
      "save_state() was called on rank 0, but rank 1 has gone on without it, "
      "to backward pass 3");
}

TEST(SaveState, FailsOnAllRanksWhenOneCannotWrite) {
  const TemporaryDirectory directory;
  expect_error<CheckpointError>(
      [&] {
        run_on_ranks(2, [&](const WorldOptions& world) {
          Adam training(automatic(world, directory.path()), kAdam, 1);
          auto handle = training.accelerator().register_save_state_pre_hook(
              [&](SaveHookContext&) {
                if (world.rank == 1) throw Error("no room on rank 1");
              });
          static_cast<void>(training.accelerator().save_state());
        });
      },
      "rank 1: no room on rank 1");
  EXPECT_TRUE(fs::is_empty(directory / "checkpoints"));
}

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

// With stale masters, the first step would undo the loading of the weights.
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

// A layer in bf16 with master weights, Adam and a schedule, alone.
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

// As the states in memory of elastic runs are.
TEST(SaveState, IsWholeInAWholeStateScopeWhateverTheSettingsSay) {
  const TemporaryDirectory directory;
  const MegatronLMOptions bare{.no_load_optim = true, .no_save_optim = true};
  HalfPrecisionTraining saved(1, bare);
  saved.run(3);
  HalfPrecisionTraining loaded(2, bare);
  {
    const detail::WholeStateScope save(
        detail::OpenedAccelerator::checkpoints_of(saved.accelerator()));
    static_cast<void>(saved.accelerator().save_state(directory / "out"));
    const detail::WholeStateScope load(
        detail::OpenedAccelerator::checkpoints_of(loaded.accelerator()));
    loaded.accelerator().load_state(directory / "out");
  }
  EXPECT_EQ(loaded.num_states(), 2);
  EXPECT_EQ(loaded.learning_rate(), saved.learning_rate());
  saved.run(1);
  loaded.run(1);
  EXPECT_TRUE(loaded.master().equal(saved.master()));
}

// Else the first step would put the checkpoint's weight into the skipped one.
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

}  // namespace save_state_test
}  // namespace accelerate
