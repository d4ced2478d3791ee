#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "planning/pipeline/operations.h"
#include "planning/pipeline/orders.h"
#include "planning/pipeline/schedule.h"
#include "planning/pipeline/simulation.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace pipeline_test {

using testing::expect_error;
using Schedules = PipelineScheduleKind;

double bubble_of(Schedules kind, int ranks, int micro_batches, int chunks = 1) {
  return simulate_pipeline(
             make_pipeline_schedule(kind, ranks, micro_batches, chunks), {})
      .bubble;
}

// A forward takes one unit of time, and so does each half of a backward.
TEST(PipelineSchedule, HasTheBubbleOfItsTheory) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = p; m <= 4 * p; m += p) {
      const double idle = p - 1;
      EXPECT_NEAR(bubble_of(Schedules::gpipe, p, m), idle / (m + idle), 1e-12);
      EXPECT_NEAR(
          bubble_of(Schedules::one_f_one_b, p, m), idle / (m + idle), 1e-12);
      for (const int v : {1, 2, 3}) {
        EXPECT_NEAR(
            bubble_of(Schedules::interleaved_1f1b, p, m, v),
            idle / (v * m + idle),
            1e-12)
            << p << " " << m << " " << v;
      }
      EXPECT_NEAR(
          bubble_of(Schedules::looped_bfs, p, m, 2),
          idle / (2 * m + idle),
          1e-12);
      // Qi et al., table 1: (p - 1) (F + B - W).
      if (m >= 2 * p) {
        // All ranks are busy from their first forward on.
        EXPECT_NEAR(
            bubble_of(Schedules::zero_bubble_v, p, m, 2),
            idle / (6 * m + idle),
            1e-12);
        EXPECT_NEAR(
            bubble_of(Schedules::interleaved_zero_bubble, p, m, 2),
            idle / (6 * m + idle),
            1e-12);
        EXPECT_NEAR(
            bubble_of(Schedules::zero_bubble, p, m),
            idle / (3 * m + idle),
            1e-12);
      }
    }
  }
}

TEST(PipelineSchedule, KeepsAsManyActivationsAsItsTheory) {
  const auto kept = [](Schedules kind, int chunks = 1) {
    const int micro_batches = chunks == 1 ? 9 : 8;
    return simulate_pipeline(
               make_pipeline_schedule(kind, 4, micro_batches, chunks), {})
        .most_kept;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(kept(Schedules::gpipe), ElementsAre(9, 9, 9, 9));
  EXPECT_THAT(kept(Schedules::one_f_one_b), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(kept(Schedules::zero_bubble), ElementsAre(4, 4, 4, 4));
  // Counted per chunk; a rank has two.
  EXPECT_THAT(kept(Schedules::interleaved_1f1b, 2), ElementsAre(11, 9, 7, 5));
  EXPECT_THAT(
      kept(Schedules::interleaved_zero_bubble, 2), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(kept(Schedules::zero_bubble_v, 2), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(kept(Schedules::dual_pipe_v, 2), ElementsAre(9, 9, 9, 9));
  EXPECT_THAT(kept(Schedules::looped_bfs, 2), ElementsAre(16, 16, 16, 16));
}

TEST(PipelineSchedule, KeepsForWeightsWhatTheirGradientsNeed) {
  using Kinds = PipelineActionKind;
  PipelineSchedule schedule;
  schedule.num_micro_batches = 2;
  schedule.ranks = {
      {{Kinds::forward, 0, 0},
       {Kinds::forward, 0, 1},
       {Kinds::backward_input, 0, 0},
       {Kinds::backward_input, 0, 1},
       {Kinds::backward_weight, 0, 0},
       {Kinds::backward_weight, 0, 1}}};
  using ::testing::ElementsAre;
  EXPECT_THAT(most_kept(schedule, {{1, 2}}), ElementsAre(4.0));
  EXPECT_THAT(most_kept(schedule, {{3, 1}}), ElementsAre(6.0));
  schedule.ranks = {
      {{Kinds::forward, 0, 0},
       {Kinds::backward, 0, 0},
       {Kinds::forward, 0, 1},
       {Kinds::backward, 0, 1}}};
  EXPECT_THAT(most_kept(schedule, {{3, 9}}), ElementsAre(3.0));
  // A rank with two stages that keep different amounts.
  const PipelineSchedule chunks =
      make_pipeline_schedule(Schedules::looped_bfs, 1, 2, 2);
  EXPECT_THAT(most_kept(chunks, {{1, 1}, {10, 1}}), ElementsAre(22.0));
}

// Why the schedule cannot complete, or what it computes twice or not at all;
// empty for a correct schedule.
std::string find_fault(const PipelineSchedule& schedule) {
  // How often each stage computes each micro-batch: forward, whole backward,
  // gradient of the input, gradient of the weights.
  std::map<std::pair<int, int>, std::array<int, 4>> counts;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    for (const auto& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
      auto& count =
          counts[{schedule.stage(rank, action.chunk), action.micro_batch}];
      ++count[static_cast<std::size_t>(action.kind)];
    }
  }
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    for (int i = 0; i < schedule.num_micro_batches; ++i) {
      const auto [forward, backward, input, weight] = counts[{stage, i}];
      if (forward == 1 && backward + input == 1 && backward + weight == 1)
        continue;
      return format(
          "stage {} computes micro-batch {} {} times forward, {} times "
          "backward, {} times for its input and {} times for its weights",
          stage,
          i,
          forward,
          backward,
          input,
          weight);
    }
  }
  return simulate_pipeline(schedule, {}).deadlock;
}

TEST(PipelineSchedule, ComputesEverythingOnceAndEnds) {
  EXPECT_TRUE(rc::check("schedules", [] {
    const auto kind = *rc::gen::element(
        Schedules::gpipe,
        Schedules::one_f_one_b,
        Schedules::interleaved_1f1b,
        Schedules::looped_bfs,
        Schedules::zero_bubble,
        Schedules::interleaved_zero_bubble,
        Schedules::zero_bubble_v,
        Schedules::dual_pipe_v);
    const int ranks = *rc::gen::inRange(1, 13);
    const int chunks = fixed_chunks_of(kind).value_or(*rc::gen::inRange(1, 5));
    const int micro_batches = *rc::gen::inRange(1, 40);
    const PipelineSchedule schedule =
        make_partial_schedule(kind, ranks, micro_batches, chunks);
    RC_ASSERT(find_fault(schedule) == "");
    // Messages can be matched by their order.
    RC_ASSERT(
        operations_with_communication(schedule).size() ==
        static_cast<std::size_t>(ranks));
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      RC_ASSERT(
          schedule.stage(schedule.rank_of(stage), schedule.chunk_of(stage)) ==
          stage);
    }
    // However long the stages take.
    PipelineTimes times{
        .forward = 1 + *rc::gen::inRange(0, 10) / 4.0,
        .backward_input = 1 + *rc::gen::inRange(0, 10) / 4.0,
        .backward_weight = *rc::gen::inRange(0, 10) / 4.0,
        .transfer = *rc::gen::inRange(0, 10) / 4.0};
    for (int stage = 0; stage < schedule.num_stages(); ++stage)
      times.stage_factors.push_back(1 + *rc::gen::inRange(0, 8) / 4.0);
    const PipelineSimulation run = simulate_pipeline(schedule, times);
    RC_ASSERT(run.deadlock == "");
    RC_ASSERT(run.bubble > -1e-9);
    RC_ASSERT(run.bubble < 1);
    for (const auto& spans : run.ranks) {
      for (std::size_t i = 1; i < spans.size(); ++i)
        RC_ASSERT(spans[i].begin >= spans[i - 1].end - 1e-9);
    }
  }));
}

TEST(PipelineSchedule, IsDrawn) {
  EXPECT_EQ(
      draw_pipeline(make_pipeline_schedule(Schedules::one_f_one_b, 2, 3)),
      "rank 0: F0 F1       B0    F2 B1       B2\n"
      "rank 1:    F0 B0    F1 B1    F2 B2\n");
  EXPECT_EQ(
      draw_pipeline(make_pipeline_schedule(Schedules::zero_bubble, 2, 3)),
      "rank 0: F0 F1    I0 W0 F2 I1 W1 I2 W2\n"
      "rank 1:    F0 I0 F1 I1 W0 F2 I2 W1 W2\n");
  EXPECT_EQ(
      draw_pipeline(
          make_pipeline_schedule(Schedules::interleaved_1f1b, 2, 2, 2)),
      "rank 0: F0a F1a F0b F1b         B0b         B1b     B0a     B1a\n"
      "rank 1:     F0a F1a F0b B0b     F1b B1b     B0a     B1a\n");
}

// Numbers of micro-batches that do not divide into rounds.
TEST(PipelineSchedule, InterleavesAnyNumberOfMicroBatches) {
  for (const auto kind :
       {Schedules::interleaved_1f1b, Schedules::interleaved_zero_bubble}) {
    for (int p = 1; p <= 6; ++p) {
      for (int v = 1; v <= 4; ++v) {
        for (int m = 1; m <= 4 * p + 3; ++m) {
          EXPECT_EQ(find_fault(make_pipeline_schedule(kind, p, m, v)), "")
              << name_of(kind) << " " << p << " " << v << " " << m;
        }
      }
    }
  }
}

TEST(PipelineSchedule, PlacesTheLastStageOnTheFirstRankOfAV) {
  const PipelineSchedule schedule =
      make_pipeline_schedule(Schedules::zero_bubble_v, 3, 6, 2);
  EXPECT_EQ(schedule.stage(0, 1), 5);
  EXPECT_EQ(schedule.stage(2, 1), 3);
  EXPECT_EQ(schedule.last_rank(), 0);
  EXPECT_EQ(make_pipeline_schedule(Schedules::gpipe, 3, 6).last_rank(), 2);
}

// A batch with too few samples.
TEST(PipelineSchedule, ReplacesAnOrderThatNeedsMoreMicroBatches) {
  const PipelineSchedule partial =
      make_partial_schedule(Schedules::dual_pipe_v, 2, 3, 2);
  EXPECT_EQ(
      partial.ranks,
      make_pipeline_schedule(Schedules::zero_bubble_v, 2, 3, 2).ranks);
  EXPECT_EQ(partial.placement, PipelinePlacement::v);
}

TEST(PipelineSchedule, FindsFaults) {
  PipelineSchedule schedule =
      make_pipeline_schedule(Schedules::one_f_one_b, 2, 2);
  schedule.ranks[1].pop_back();
  EXPECT_EQ(
      find_fault(schedule),
      "stage 1 computes micro-batch 1 1 times forward, 0 times backward, 0 "
      "times for its input and 0 times for its weights");
  schedule = make_pipeline_schedule(Schedules::one_f_one_b, 2, 2);
  std::reverse(schedule.ranks[0].begin(), schedule.ranks[0].end());
  EXPECT_EQ(
      find_fault(schedule),
      "rank 0 waits forever for micro-batch 1 of its chunk 0");
}

TEST(PipelineSchedule, RefusesWhatIsNotPossible) {
  expect_error<ConfigError>(
      [] { make_pipeline_schedule(Schedules::gpipe, 0, 4); },
      "must be at least 1, but are 0, 1 and 4");
  expect_error<ConfigError>(
      [] { make_pipeline_schedule(Schedules::one_f_one_b, 2, 4, 2); },
      "1F1B needs one chunk of layers per rank, not 2; use Interleaved1F1B");
  expect_error<ConfigError>(
      [] { make_pipeline_schedule(Schedules::zero_bubble_v, 2, 4, 3); },
      "ZBVZeroBubble needs two chunks of layers per rank, not 3");
  expect_error<ConfigError>(
      [] { make_pipeline_schedule(Schedules::dual_pipe_v, 4, 6, 2); },
      "DualPipeV needs at least as many micro-batches as there are stages, "
      "which are 8, not 6");
  expect_error<ConfigError>(
      [] { parse_pipeline_schedule("1b1f"); },
      "\"1b1f\" is not a pipeline schedule; use GPipe, 1F1B, "
      "Interleaved1F1B, LoopedBFS, ZBH1, InterleavedZeroBubble, "
      "ZBVZeroBubble, DualPipeV");
  EXPECT_EQ(parse_pipeline_schedule("ZBH1"), Schedules::zero_bubble);
  EXPECT_EQ(parse_pipeline_schedule("dualpipev"), Schedules::dual_pipe_v);
}

TEST(PipelineSimulation, WaitsForTransfersAndSlowStages) {
  const PipelineSchedule schedule =
      make_pipeline_schedule(Schedules::gpipe, 2, 1);
  const PipelineSimulation run = simulate_pipeline(
      schedule,
      {.forward = 2,
       .backward_input = 3,
       .backward_weight = 1,
       .transfer = 0.5,
       .stage_factors = {1, 2}});
  // Forward 2, transfer, forward 4, backward 8, transfer, backward 4.
  EXPECT_DOUBLE_EQ(run.time, 19);
  EXPECT_DOUBLE_EQ(run.bubble, 1 - (2 + 4 + 8 + 4) / 38.0);
  EXPECT_DOUBLE_EQ(run.ranks[1][0].begin, 2.5);
}

}  // namespace pipeline_test
}  // namespace accelerate::detail
