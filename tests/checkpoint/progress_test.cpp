#include <accelerate/accelerate.h>

#include <gmock/gmock.h>

#include "support/temporary_directory.h"
#include "train/session/session.h"

namespace accelerate {
namespace checkpoint_progress_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

AcceleratorOptions alone(bool progress_bars) {
  AcceleratorOptions options;
  options.world = {.rank = 0, .size = 1};
  options.progress_bars = progress_bars;
  return options;
}

// 4 MB of weights, and progress bars that show every one of their steps.
struct Program {
  explicit Program(bool progress_bars = true)
      : accelerator(alone(progress_bars)),
        net(torch::nn::LinearOptions(1000, 1000).bias(false)),
        model(accelerator.prepare(net)),
        options(model.prepared()->session->services.checkpoints->progress) {
    options.delay_seconds = 0;
    options.line_interval_seconds = 0;
  }

  template <class Call>
  std::string shown_by(const Call& call) const {
    ::testing::internal::CaptureStderr();
    call();
    return ::testing::internal::GetCapturedStderr();
  }

  testing::TemporaryDirectory directory;
  Accelerator accelerator;
  torch::nn::Linear net;
  Model<torch::nn::LinearImpl> model;
  ProgressOptions& options;
};

TEST(CheckpointProgress, ShowsTheBytesOfSavesAndLoads) {
  const Program program;
  const auto path = program.directory / "checkpoint";
  const Accelerator& accelerator = program.accelerator;
  EXPECT_THAT(
      program.shown_by([&] { accelerator.save_state(path); }),
      HasSubstr("save_state: 100% 4.00M/4.00M ["));
  EXPECT_THAT(
      program.shown_by([&] { accelerator.load_state(path); }),
      HasSubstr("load_state: 100% 4.00M/4.00M ["));
  const auto weights = program.directory / "weights";
  EXPECT_THAT(
      program.shown_by([&] { accelerator.save_model(program.model, weights); }),
      HasSubstr("save_model: 100% 4.00M/4.00M ["));
  EXPECT_THAT(
      program.shown_by([&] { accelerator.load_model(program.model, weights); }),
      HasSubstr("load_model: 100% 4.00M/4.00M ["));
}

TEST(CheckpointProgress, IsNotShownBySavesThatDoNotBlock) {
  const Program program;
  EXPECT_THAT(
      program.shown_by([&] {
        program.accelerator
            .save_state(
                program.directory / "checkpoint", {.asynchronous = true})
            .wait();
      }),
      IsEmpty());
}

TEST(CheckpointProgress, IsNotShownSoonOrIfItIsSwitchedOff) {
  const Program program;
  program.options.delay_seconds = 1e6;
  const Program silent(false);
  for (const Program* each : {&program, &silent}) {
    EXPECT_THAT(
        each->shown_by([&] {
          each->accelerator.save_state(each->directory / "checkpoint");
          each->accelerator.load_state(each->directory / "checkpoint");
        }),
        IsEmpty());
  }
}

}  // namespace checkpoint_progress_test
}  // namespace accelerate
