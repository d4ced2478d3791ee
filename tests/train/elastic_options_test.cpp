// What run_elastic() does without a launcher that replaces ranks.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace elastic_options_test {

using ::testing::Contains;
using testing::expect_error;
using ::testing::HasSubstr;
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
    int ranks_per_batch = 1) {
  int found = 0;
  run_elastic(
      [&](ElasticContext& context) {
        found =
            context.gradient_accumulation_steps(batch_size, ranks_per_batch);
      },
      {.global_batch_size = global_batch_size});
  return found;
}

TEST(RunElastic, WindowsMakeUpTheGlobalBatch) {
  EXPECT_EQ(window(12, 4), 3);
  EXPECT_EQ(window(12, 12), 1);
  EXPECT_EQ(window(12, 5), 2);
  EXPECT_EQ(window(12, 100), 1);
  expect_error<ConfigError>(
      [] { window(0, 4); }, "needs ElasticOptions::global_batch_size");
  expect_error<ConfigError>(
      [] { window(12, 0); }, "was given batches of 0 for 1 of 1 ranks");
  expect_error<ConfigError>(
      [] { window(12, 4, 0); }, "batches of 4 for 0 of 1 ranks");
}

TEST(RunElastic, SaysWhereTheGlobalBatchIsAnother) {
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
            context.gradient_accumulation_steps(5);
        const Accelerator accelerator(options);
        context.resume(accelerator);
      },
      {.global_batch_size = 12});
  EXPECT_THAT(
      lines, Contains(HasSubstr("a step has 10 samples instead of the 12")));
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
  // Another program's file in the same place stays.
  std::ofstream(states / "other").close();
  EXPECT_EQ(
      std::filesystem::status(states).permissions(),
      std::filesystem::perms::owner_all);
  EXPECT_TRUE(train(0));
  EXPECT_TRUE(std::filesystem::exists(states / "other"));
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
      [&] { resume({.redundancy_steps = 0}); }, "redundancy_steps is 0");
  const TemporaryDirectory directory;
  std::filesystem::create_symlink("/", directory.path() / "link");
  expect_error<ConfigError>(
      [&] {
        resume(
            {.redundancy = Redundancy::neighbour,
             .redundancy_steps = 1,
             .memory_dir = directory.path() / "link"});
      },
      "it is another user's, or no directory");
}

}  // namespace elastic_options_test
}  // namespace accelerate
