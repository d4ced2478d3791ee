// What run_elastic() does without a launcher that replaces ranks.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerate.h>

#include "checkpoint/run/checkpoints.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "launch/board/board.h"
#include "launch/elastic/generations.h"
#include "support/expect_error.h"
#include "support/recorded_disk.h"
#include "support/temporary_directory.h"
#include "train/session/session.h"

namespace accelerate {
namespace elastic_options_test {

using ::testing::AllOf;
using ::testing::Contains;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

TEST(RunElastic, CallsTheFunctionOnceWithoutALauncher) {
  int num_calls = 0;
  const ElasticEnd end = run_elastic([&](ElasticContext& context) {
    ++num_calls;
    EXPECT_EQ(context.generation(), 1);
    EXPECT_EQ(context.num_processes(), 1);
    EXPECT_EQ(context.process_index(), 0);
    const Accelerator accelerator({.journal = false, .world = alone()});
    EXPECT_FALSE(context.resume(accelerator));
    EXPECT_FALSE(context.step_done(accelerator));
    EXPECT_FALSE(context.resizing());
    EXPECT_FALSE(context.preempted());
  });
  EXPECT_EQ(num_calls, 1);
  EXPECT_EQ(end, ElasticEnd::finished);
}

TEST(RunElastic, PassesOnExceptions) {
  expect_error<DistributedError>(
      [] {
        run_elastic([](ElasticContext&) -> void {
          throw DistributedError("[comm] lost");
        });
      },
      "[comm] lost");
}

int window(
    std::int64_t global_batch_size,
    std::int64_t batch_size,
    int ranks_per_batch = 1,
    std::optional<ElasticBatch> batch = std::nullopt) {
  int found = 0;
  run_elastic(
      [&](ElasticContext& context) {
        found =
            context.gradient_accumulation_steps(batch_size, ranks_per_batch);
      },
      {.global_batch_size = global_batch_size, .batch = batch});
  return found;
}

/// A group of one rank that can grow to four.
class SeatOfFour {
 public:
  SeatOfFour()
      : board_(detail::Board::create({.num_pages = 4})),
        generations_(
            board_,
            {.fewest = 1, .most = 4, .num_restarts_left = &num_restarts_}) {
    for (int seat = 1; seat < 4; ++seat) board_.page(seat).seat.rank.store(-1);
    board_.shared_header().num_ranks.store(1);
  }

  [[nodiscard]] std::map<std::string, std::string> variables() const {
    return {
        {"RANK", "0"},
        {"WORLD_SIZE", "1"},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "1"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "29500"},
        {"ACCELERATE_CPP_BOARD", board_.ticket()}};
  }

 private:
  int num_restarts_ = 0;
  detail::Board board_;
  detail::Generations generations_;
};

TEST(RunElastic, WindowsKeepTheBatchOfEachRankOfTheMost) {
  const SeatOfFour group;
  auto variables = group.variables();
  const auto of_the_group = patch_environment(variables);
  EXPECT_EQ(window(48, 4), 12);
  EXPECT_EQ(window(48, 4, 1, ElasticBatch::global), 12);
  EXPECT_EQ(window(48, 4, 1, ElasticBatch::per_rank), 3);
  EXPECT_EQ(window(48, 4, 2, ElasticBatch::per_rank), 6);
  expect_error<ConfigError>(
      [] { window(48, 4, 3, ElasticBatch::per_rank); }, "of 4 ranks each");
  const auto told =
      patch_environment({{"ACCELERATE_CPP_ELASTIC_BATCH", "per_rank"}});
  EXPECT_EQ(window(48, 4), 3);
  EXPECT_EQ(window(48, 4, 1, ElasticBatch::global), 12);
  const auto wrong =
      patch_environment({{"ACCELERATE_CPP_ELASTIC_BATCH", "each"}});
  expect_error<ConfigError>(
      [] { window(48, 4); }, "ACCELERATE_CPP_ELASTIC_BATCH");
}

TEST(RunElastic, WindowsMakeUpTheGlobalBatch) {
  EXPECT_EQ(window(12, 4), 3);
  EXPECT_EQ(window(12, 12), 1);
  EXPECT_EQ(window(12, 5), 2);
  EXPECT_EQ(window(12, 100), 1);
  expect_error<ConfigError>(
      [] { window(0, 4); }, "needs ElasticOptions::global_batch_size");
  expect_error<ConfigError>(
      [] { window(12, 0); }, "got batches of 0 for 1 of 1 ranks");
  expect_error<ConfigError>(
      [] { window(12, 4, 0); }, "batches of 4 for 0 of 1 ranks");
}

// Returns the warnings of a program that asks for a window of batches.
std::vector<std::string> warnings(
    std::int64_t batch_size,
    const ElasticOptions& elastic) {
  std::vector<std::string> lines;
  run_elastic(
      [&](ElasticContext& context) {
        AcceleratorOptions options{.journal = false, .world = alone()};
        options.world.logger = Logger(
            [&](const LogRecord& record) {
              lines.push_back(std::string(record.message));
            },
            LogLevel::warning);
        options.gradient_accumulation_steps =
            context.gradient_accumulation_steps(batch_size);
        const Accelerator accelerator(options);
        context.resume(accelerator);
      },
      elastic);
  return lines;
}

TEST(RunElastic, SaysWhereTheGlobalBatchIsAnother) {
  EXPECT_THAT(
      warnings(5, {.global_batch_size = 12}),
      Contains(HasSubstr("a step has 10 samples instead of the 12")));
}

TEST(RunElastic, SaysThatALauncherDoesNotTellHowManyRanksThereWere) {
  const ElasticOptions per_rank{
      .global_batch_size = 12, .batch = ElasticBatch::per_rank};
  EXPECT_THAT(warnings(4, per_rank), IsEmpty());
  const auto scope = patch_environment(
      {{"RANK", "0"},
       {"WORLD_SIZE", "1"},
       {"LOCAL_RANK", "0"},
       {"LOCAL_WORLD_SIZE", "1"},
       {"MASTER_ADDR", "127.0.0.1"},
       {"MASTER_PORT", "29500"}});
  EXPECT_THAT(
      warnings(4, per_rank),
      Contains(HasSubstr("the number of ranks with which the group began")));
  EXPECT_THAT(warnings(4, {.global_batch_size = 12}), IsEmpty());
}

// Trains to the end of step `last`, with an in-memory state after every fourth
// step and a project checkpoint after `saved`. Returns the step after which it
// started.
int train_on(const std::filesystem::path& directory, int last, int saved) {
  int first = 0;
  run_elastic(
      [&](ElasticContext& context) {
        const Accelerator accelerator(
            {.project_configuration =
                 {.project_dir = (directory / "project").string(),
                  .automatic_checkpoint_naming = true},
             .journal = false,
             .world = alone()});
        torch::nn::Linear net(2, 1);
        const auto model = accelerator.prepare(net);
        int step = 0;
        accelerator.register_for_checkpointing("step", step);
        context.resume(accelerator);
        first = step;
        while (step < last) {
          ++step;
          EXPECT_FALSE(context.step_done(accelerator));
          if (step == saved) accelerator.save_state().wait();
        }
        accelerator.finish();
      },
      {.redundancy = Redundancy::neighbour,
       .redundancy_steps = 4,
       .memory_dir = directory / "memory"});
  return first;
}

// Sets the modification time of every file below a directory to `by` from now.
void date_files(const std::filesystem::path& directory, std::chrono::hours by) {
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(directory)) {
    last_write_time(
        entry.path(), std::filesystem::file_time_type::clock::now() + by);
  }
}

TEST(RunElastic, GoesBackToTheNewestStateWhateverTheClocksSay) {
  const TemporaryDirectory directory;
  EXPECT_EQ(train_on(directory.path(), 9, 6), 0);
  date_files(directory.path() / "project", std::chrono::hours(1));
  // Steps 4 and 8 are in memory.
  EXPECT_EQ(train_on(directory.path(), 11, 10), 8);
  date_files(directory.path() / "memory", std::chrono::hours(2));
  EXPECT_EQ(train_on(directory.path(), 10, 0), 10);
}

// Megatron-LM's settings leave optimizers out of checkpoints, but a run that
// rolls back to its own state needs them. Continues from the state after the
// second step, if there is one, and returns the weight after each step.
std::vector<torch::Tensor> train_without_saved_optimizers(
    const std::filesystem::path& memory,
    int num_steps) {
  std::vector<torch::Tensor> weights;
  run_elastic(
      [&](ElasticContext& context) {
        ParallelOptions parallel;
        parallel.megatron_lm = {.no_load_optim = true, .no_save_optim = true};
        const Accelerator accelerator(
            {.parallel = parallel, .journal = false, .world = alone()});
        torch::manual_seed(7);
        torch::nn::Linear net(2, 1);
        torch::optim::AdamW adamw(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, adamw);
        int step = 0;
        accelerator.register_for_checkpointing("step", step);
        context.resume(accelerator);
        EXPECT_THAT(step, ::testing::AnyOf(0, 2));
        for (int i = 0; i < num_steps; ++i) {
          const auto scope = accelerator.accumulate(model);
          const torch::Tensor inputs = torch::arange(4).add(++step).sin();
          accelerator.backward(model(inputs.view({2, 2})).pow(2).mean());
          optimizer.step();
          optimizer.zero_grad();
          weights.push_back(net->weight.detach().clone());
          EXPECT_FALSE(context.step_done(accelerator));
        }
        accelerator.finish();
      },
      {.redundancy = Redundancy::neighbour,
       .redundancy_steps = 2,
       .memory_dir = memory});
  return weights;
}

TEST(RunElastic, KeepsOptimizersInStatesInMemoryWhateverCheckpointsLeaveOut) {
  const TemporaryDirectory directory;
  const auto undisturbed =
      train_without_saved_optimizers(directory.path() / "other", 3);
  const auto memory = directory.path() / "memory";
  train_without_saved_optimizers(memory, 2);
  const auto again = train_without_saved_optimizers(memory, 1);
  EXPECT_TRUE(again[0].equal(undisturbed[2]));
  EXPECT_FALSE(again[0].equal(undisturbed[0]));
}

TEST(RunElastic, KeepsStatesInTheDirectoryItIsTold) {
  const TemporaryDirectory directory;
  const auto states = directory.path() / "states";
  const auto train = [&](int num_steps) {
    bool has_resumed = false;
    run_elastic(
        [&](ElasticContext& context) {
          const Accelerator accelerator({.journal = false, .world = alone()});
          torch::nn::Linear net(2, 1);
          torch::optim::SGD sgd(net->parameters(), 0.1);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          int step = 0;
          accelerator.register_for_checkpointing("step", step);
          has_resumed = context.resume(accelerator);
          if (has_resumed) {
            EXPECT_EQ(step, 4);
          }
          for (int i = 0; i < num_steps; ++i) {
            ++step;
            EXPECT_FALSE(context.step_done(accelerator));
          }
          accelerator.finish();
        },
        {.redundancy = Redundancy::neighbour,
         .redundancy_steps = 4,
         .memory_dir = states});
    return has_resumed;
  };
  EXPECT_FALSE(train(7));
  // Another program's file in the same directory stays.
  std::ofstream(states / "other").close();
  EXPECT_EQ(
      std::filesystem::status(states).permissions(),
      std::filesystem::perms::owner_all);
  EXPECT_TRUE(train(0));
  EXPECT_TRUE(std::filesystem::exists(states / "other"));
}

/// How four steps went that keep a state each, on a disk that fails.
struct UnkeptStates {
  bool has_failed = false;
  int num_steps = 0;
  int num_states = 0;
  std::vector<std::string> warnings;
};

UnkeptStates keep_on(const std::shared_ptr<testing::FailingDisk>& disk) {
  constexpr int kSteps = 4;
  UnkeptStates seen;
  const TemporaryDirectory directory;
  const auto memory = directory.path() / "memory";
  run_elastic(
      [&](ElasticContext& context) {
        AcceleratorOptions options{.journal = false, .world = alone()};
        options.world.logger = Logger(
            [&](const LogRecord& record) {
              seen.warnings.emplace_back(record.message);
            },
            LogLevel::warning);
        const Accelerator accelerator(options);
        torch::nn::Linear net(2, 1);
        const auto model = accelerator.prepare(net);
        context.resume(accelerator);
        detail::CheckpointState& checkpoints =
            *detail::AcceleratorAccess::session(accelerator)
                 .services.checkpoints;
        checkpoints.disk = disk;
        for (; seen.num_steps < kSteps; ++seen.num_steps) {
          EXPECT_FALSE(context.step_done(accelerator));
          checkpoints.saver.join();
        }
        // The program's own saves do not report those of the run.
        checkpoints.disk = testing::make_unsynced_disk();
        accelerator.save_state(directory / "own").wait();
        accelerator.finish();
      },
      {.redundancy = Redundancy::neighbour,
       .redundancy_steps = 1,
       .memory_dir = memory});
  seen.has_failed = disk->has_failed();
  for (const auto& entry : detail::list_checkpoints(memory)) {
    if (entry.kind == detail::CheckpointKind::complete) ++seen.num_states;
  }
  return seen;
}

// A protection must not be what ends a training: a full /dev/shm, say.
TEST(RunElastic, GoesOnWhereverKeepingAStateFails) {
  const ::testing::Matcher<const std::vector<std::string>&> says_so =
      Contains(AllOf(
          HasSubstr("a state was not kept in memory, and training continues "
                    "without it"),
          HasSubstr("No space left on device")));
  bool has_failed = true;
  for (std::size_t call = 0; has_failed; ++call) {
    SCOPED_TRACE(call);
    const UnkeptStates once =
        keep_on(std::make_shared<testing::FailingDisk>(call, ENOSPC, false));
    EXPECT_EQ(once.num_steps, 4);
    EXPECT_GE(once.num_states, 1);
    const UnkeptStates always =
        keep_on(std::make_shared<testing::FailingDisk>(call, ENOSPC, true));
    EXPECT_EQ(always.num_steps, 4);
    if (always.num_states < 2 && always.has_failed) {
      EXPECT_THAT(always.warnings, says_so);
    }
    has_failed = once.has_failed;
  }
}

// An asynchronous save of the program's own that fails is reported, and costs no
// state but that step's.
TEST(RunElastic, ReportsFailuresOfTheProgramsOwnSaves) {
  int num_failed = 0;
  bool has_failed = true;
  for (std::size_t call = 0; has_failed; ++call) {
    SCOPED_TRACE(call);
    const auto disk =
        std::make_shared<testing::FailingDisk>(call, ENOSPC, false);
    const TemporaryDirectory directory;
    const auto memory = directory.path() / "memory";
    run_elastic(
        [&](ElasticContext& context) {
          const Accelerator accelerator({.journal = false, .world = alone()});
          torch::nn::Linear net(2, 1);
          const auto model = accelerator.prepare(net);
          context.resume(accelerator);
          detail::CheckpointState& checkpoints =
              *detail::AcceleratorAccess::session(accelerator)
                   .services.checkpoints;
          checkpoints.disk = disk;
          bool is_told_later = true;
          try {
            accelerator.save_state(
                directory.path() / "own", {.asynchronous = true});
          } catch (const Error&) {
            is_told_later = false;
          }
          checkpoints.saver.join();
          is_told_later = is_told_later && disk->has_failed();
          checkpoints.disk = testing::make_unsynced_disk();
          bool is_told = false;
          try {
            EXPECT_FALSE(context.step_done(accelerator));
          } catch (const CheckpointError& error) {
            is_told = true;
            EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
            EXPECT_FALSE(context.step_done(accelerator));
          }
          checkpoints.saver.join();
          EXPECT_FALSE(is_told && !is_told_later);
          // Some failures are mended.
          if (is_told_later && !is_told) {
            EXPECT_TRUE(std::filesystem::exists(directory.path() / "own"));
          }
          num_failed += is_told ? 1 : 0;
        },
        {.redundancy = Redundancy::neighbour,
         .redundancy_steps = 1,
         .memory_dir = memory});
    has_failed = disk->has_failed();
    EXPECT_TRUE(std::ranges::any_of(
        detail::list_checkpoints(memory), [](const auto& entry) {
          return entry.kind == detail::CheckpointKind::complete;
        }));
  }
  EXPECT_GT(num_failed, 2);
}

TEST(RunElastic, RefusesWhatCannotBeKept) {
  const auto resume = [](const ElasticOptions& options) {
    run_elastic(
        [](ElasticContext& context) {
          const Accelerator accelerator({.journal = false, .world = alone()});
          context.resume(accelerator);
          static_cast<void>(context.step_done(accelerator));
        },
        options);
  };
  expect_error<ConfigError>(
      [&] { resume({.redundancy = Redundancy::neighbour}); },
      "needs a directory in memory");
  expect_error<ConfigError>(
      [&] { resume({.redundancy_steps = 0}); },
      "redundancy_steps must be at least 1, but is 0");
  const TemporaryDirectory directory;
  std::filesystem::create_symlink("/", directory.path() / "link");
  expect_error<ConfigError>(
      [&] {
        resume(
            {.redundancy = Redundancy::neighbour,
             .redundancy_steps = 1,
             .memory_dir = directory.path() / "link"});
      },
      "it is another user's, or not a directory");
}

}  // namespace elastic_options_test
}  // namespace accelerate
