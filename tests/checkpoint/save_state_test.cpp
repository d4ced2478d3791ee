#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include <atomic>
#include <fstream>
#include <latch>
#include <limits>
#include <set>
#include <thread>

#include "checkpoint/resumable_training.h"
#include "support/expect_error.h"
#include "support/recorded_disk.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"
#include "train/session/session.h"

namespace accelerate {
namespace save_state_test {

namespace fs = std::filesystem;
using testing::automatic_checkpoints;
using testing::equal;
using testing::expect_error;
using testing::kAdam;
using testing::kAlone;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using testing::values_of;
using testing::without_dropout;
using Adam = testing::AdamTraining;

TEST(SaveState, KeepsTotalLimitAndContinuesNumbering) {
  const TemporaryDirectory directory;
  Adam training(automatic_checkpoints(kAlone, directory.path(), 2), kAdam, 1);
  for (int i = 0; i < 4; ++i) {
    training.run(1);
    EXPECT_EQ(
        training.accelerator().save_state().path().filename(),
        "checkpoint_" + std::to_string(i));
  }
  EXPECT_FALSE(fs::exists(directory / "checkpoints/checkpoint_1"));
  EXPECT_TRUE(fs::exists(directory / "checkpoints/checkpoint_2"));
  Adam next(automatic_checkpoints(kAlone, directory.path(), 2), kAdam, 1);
  next.accelerator().load_state();
  EXPECT_EQ(next.counter().count, 4);
  EXPECT_EQ(next.accelerator().save_state().path().filename(), "checkpoint_4");
  next.accelerator().checkpoints().set_iteration(4);
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

// Ranks 0 and 1 are on one node, 2 and 3 on another with its own disk.
TEST(SaveState, WritesOnEachNodeOnRequest) {
  for (const bool is_per_node : {true, false}) {
    const TemporaryDirectory directory;
    const auto train = [&](std::uint64_t seed, auto&& use) {
      run_on_ranks(4, [&](WorldOptions world) {
        world.local_rank = *world.rank % 2;
        world.local_size = 2;
        AcceleratorOptions options = automatic_checkpoints(
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
          fs::path(training.accelerator()
                       .checkpoints()
                       .project_configuration()
                       .project_dir) /
              "one.pt");
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

// A disk on which threads other than its creator block in create() until
// open().
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

TEST(SaveState, ReturnsBeforeItsFilesAreWrittenIfAsynchronous) {
  struct Case {
    SaveStateOptions options;
    bool is_in_background;
  };
  for (const auto& [options, is_in_background] :
       {Case{{}, false},
        Case{{.asynchronous = true}, true},
        // One byte is not enough for three weights.
        Case{{.asynchronous = true, .memory_limit = 3}, false},
        Case{{.asynchronous = true, .memory_limit = 1 << 20}, true}}) {
    const TemporaryDirectory directory;
    AcceleratorOptions all;
    all.world = kAlone;
    const Accelerator accelerator(all);
    torch::nn::Linear net(2, 1);
    const auto model = accelerator.prepare(net);
    const auto disk = std::make_shared<HeldDisk>();
    detail::AcceleratorAccess::session(accelerator).services.checkpoints->disk =
        disk;
    const SaveTicket ticket =
        accelerator.save_state(directory / "first", options);
    EXPECT_EQ(ticket.is_done(), !is_in_background);
    // A skipped save leaves the save in progress alone.
    const SaveTicket other = accelerator.save_state(
        directory / "second", {.when_busy = WhenBusy::skip});
    EXPECT_EQ(other.was_skipped(), is_in_background);
    EXPECT_EQ(fs::exists(directory / "second"), !is_in_background);
    EXPECT_FALSE(ticket.was_skipped());
    disk->open();
    ticket.wait();
    EXPECT_TRUE(ticket.is_done());
    EXPECT_EQ(disk->has_other_writers(), is_in_background);
    // Waits for the save in progress.
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
  AcceleratorOptions options =
      automatic_checkpoints(kAlone, directory.path(), 2);
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
  Adam training(automatic_checkpoints(kAlone, directory.path()), kAdam, 1);
  expect_error<ConfigError>(
      [&] { static_cast<void>(training.accelerator().save_state()); },
      "checkpoint_9223372036854775807 has the highest possible number");
  training.accelerator().checkpoints().set_iteration(3);
  EXPECT_EQ(
      training.accelerator().save_state().path().filename(), "checkpoint_3");
  for (const std::int64_t number :
       {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    training.accelerator().checkpoints().set_iteration(number);
    expect_error<ConfigError>(
        [&] { static_cast<void>(training.accelerator().save_state()); },
        "but is " + std::to_string(number));
  }
}

TEST(SaveState, NamesAnotherProgramThatTookItsNumber) {
  const TemporaryDirectory directory;
  Adam one(automatic_checkpoints(kAlone, directory.path()), kAdam, 1);
  Adam other(automatic_checkpoints(kAlone, directory.path()), kAdam, 2);
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

TEST(Accelerator, RefusesAProjectThatCannotKeepACheckpoint) {
  AcceleratorOptions options;
  options.world = kAlone;
  options.project_configuration = {.total_limit = 0, .iteration = -1};
  expect_error<ConfigError>(
      [&] { const Accelerator refused(options); },
      "[checkpoint] total_limit must be at least 1");
  expect_error<ConfigError>(
      [&] { const Accelerator refused(options); },
      "iteration must be at least 0, but is -1");
}

TEST(SaveState, FailsOnAllRanksIfOneMakesAnotherCall) {
  const TemporaryDirectory directory;
  expect_error<DistributedError>(
      [&] {
        run_on_ranks(2, [&](const WorldOptions& world) {
          Adam training(
              automatic_checkpoints(world, directory.path()), kAdam, 1);
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
          Adam training(
              automatic_checkpoints(world, directory.path()), kAdam, 1);
          // A common mistake: only the main process saves.
          training.run(3, 2, [&] {
            if (training.accelerator().is_main_process()) {
              training.accelerator().save_state();
            }
          });
        });
      },
      "save_state() was called on rank 0, but rank 1 has moved on without it, "
      "to backward pass 3");
}

TEST(SaveState, FailsOnAllRanksWhenOneCannotWrite) {
  const TemporaryDirectory directory;
  expect_error<CheckpointError>(
      [&] {
        run_on_ranks(2, [&](const WorldOptions& world) {
          Adam training(
              automatic_checkpoints(world, directory.path()), kAdam, 1);
          auto handle =
              training.accelerator().checkpoints().register_save_state_pre_hook(
                  [&](SaveHookContext&) {
                    if (world.rank == 1) throw Error("no room on rank 1");
                  });
          static_cast<void>(training.accelerator().save_state());
        });
      },
      "rank 1: no room on rank 1");
  EXPECT_TRUE(fs::is_empty(directory / "checkpoints"));
}

}  // namespace save_state_test
}  // namespace accelerate
