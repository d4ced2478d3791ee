// How prepare() treats a schedule that Megatron-LM's settings describe.
#include <gtest/gtest.h>

#include <accelerate/accelerate.h>

#include "support/run_on_ranks.h"

namespace accelerate {
namespace megatron_schedule_test {

using testing::run_on_ranks;

// Other schedules step once per process, if asked to.
TEST(MegatronSchedule, StepsWithTheOptimizerAndIsNotReported) {
  run_on_ranks(2, [](WorldOptions world) {
    std::vector<std::string> warnings;
    world.logger = Logger(
        [&](const LogRecord& record) {
          warnings.push_back(std::string(record.message));
        },
        LogLevel::warning);
    const MegatronLMOptions options{
        .train_iters = 4, .lr_decay_style = "linear", .min_lr = 0.2};
    for (const bool follows : {true, false}) {
      warnings.clear();
      const Accelerator accelerator(
          {.scheduler = {.step_with_processes = true},
           .parallel = {.megatron_lm = options},
           .world = world});
      const torch::nn::Linear net(2, 1);
      torch::optim::SGD sgd(net->parameters(), 1.0);
      std::unique_ptr<optim::LRScheduler> made;
      if (follows) {
        made = scheduler_from_megatron_lm(options, sgd);
      } else {
        made = std::make_unique<optim::LinearLR>(
            sgd,
            optim::LinearLROptions{
                .start_factor = 1, .end_factor = 0.2, .total_iters = 4});
      }
      const auto [model, optimizer, scheduler] =
          accelerator.prepare(net, sgd, *made);
      accelerator.backward(model(torch::ones({1, 2})).sum());
      optimizer.step();
      scheduler.step();
      EXPECT_NEAR(scheduler.get_last_lr()[0], follows ? 0.8 : 0.6, 1e-12);
      if (*world.rank != 0) continue;
      // Settings that describe the schedule are reported if it was not made
      // from them.
      ASSERT_EQ(warnings.size(), follows ? 0u : 1u);
      if (follows) continue;
      EXPECT_EQ(
          warnings[0],
          "settings that have no effect in this program: "
          "train_iters (code; make the schedule with "
          "scheduler_from_megatron_lm()), lr_decay_style (code; make the "
          "schedule with scheduler_from_megatron_lm()), min_lr (code; make the "
          "schedule with scheduler_from_megatron_lm())");
    }
  });
}

}  // namespace megatron_schedule_test
}  // namespace accelerate
