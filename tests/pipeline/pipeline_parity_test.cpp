// Training in stages equals training in one process, bit for bit.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "pipeline/staged_training.h"
#include "support/gpu_device.h"

namespace accelerate {
namespace pipeline_parity_test {

using namespace staged_training;

struct ScheduleCase {
  std::string name;
  int num_chunks = 1;

  [[nodiscard]] bool can_have(int num_stages, int micro_batches) const {
    return name != "DualPipeV" || micro_batches >= 2 * num_stages;
  }
};

class PipelineParity
    : public ::testing::TestWithParam<std::tuple<ScheduleCase, Precision>> {};

TEST_P(PipelineParity, EqualsOneProcess) {
  if (const auto missing = testing::missing_device_of_ranks(); !missing.empty())
    GTEST_SKIP() << "label gpu was not run: " << missing;
  const auto& [schedule, precision] = GetParam();
  std::map<int, Trained> alone;
  for (const int stages : {2, 3, 4}) {
    if (!testing::can_run_on(stages)) continue;
    for (const int micro_batches : {stages, 2 * stages, 5}) {
      if (!schedule.can_have(stages, micro_batches)) continue;
      if (!alone.contains(micro_batches)) {
        alone[micro_batches] =
            train_alone(micro_batches, precision, schedule.name == "LoopedBFS");
      }
      for (const bool recomputes : {false, true}) {
        SCOPED_TRACE(
            std::to_string(stages) + " stages, " +
            std::to_string(micro_batches) + " micro-batches" +
            (recomputes ? ", recomputed" : ""));
        expect_same(
            train_in_stages(
                {stages,
                 schedule.name,
                 schedule.num_chunks,
                 micro_batches,
                 recomputes,
                 precision}),
            alone[micro_batches]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schedules,
    PipelineParity,
    ::testing::Combine(
        ::testing::Values(
            ScheduleCase{"GPipe"},
            ScheduleCase{"1F1B"},
            ScheduleCase{"Interleaved1F1B", 2},
            ScheduleCase{"LoopedBFS", 2},
            ScheduleCase{"ZBH1"},
            ScheduleCase{"InterleavedZeroBubble", 2},
            ScheduleCase{"ZBVZeroBubble", 2},
            ScheduleCase{"DualPipeV", 2}),
        ::testing::Values(Precision::no, Precision::bf16, Precision::fp16)),
    [](const auto& chosen) {
      const Precision precision = std::get<1>(chosen.param);
      return "Schedule" + std::get<0>(chosen.param).name +
          (precision == Precision::no         ? "InFp32"
               : precision == Precision::bf16 ? "InBf16"
                                              : "InFp16");
    });

}  // namespace pipeline_parity_test
}  // namespace accelerate
