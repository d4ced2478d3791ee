// How long a simulated run takes, in cases that can be solved on paper.
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planning/pipeline/schedule.h"
#include "planning/pipeline/simulation.h"
#include "planning/simulation/replay.h"

namespace accelerate::detail {
namespace replay_test {

constexpr double kTolerance = 1e-9;

struct Ranks {
  explicit Ranks(std::size_t count) : programs(count) {
    for (std::size_t i = 0; i < count; ++i)
      processors.push_back(programs.add_resource({.name = "processor"}));
    link = programs.add_resource({"link", 100, 100});
  }

  std::size_t message(double bytes, double latency = 0, int senders = 1) {
    return programs.add_message(
        {"message", senders, latency, {{bytes, {link}}}});
  }
  void compute(std::size_t rank, double seconds) {
    programs.compute(rank, processors[rank], seconds, "work");
  }

  RankPrograms programs;
  std::vector<std::size_t> processors;
  std::size_t link = 0;
};

TEST(Replay, AddsUpWhatARankComputes) {
  Ranks ranks(1);
  ranks.compute(0, 1.5);
  ranks.compute(0, 0);
  ranks.compute(0, 2);
  const Replay run = replay(ranks.programs);
  EXPECT_NEAR(run.time, 3.5, kTolerance);
  EXPECT_NEAR(run.computing_seconds(0), 3.5, kTolerance);
  EXPECT_NEAR(run.bubble(), 0, kTolerance);
  ASSERT_EQ(run.ranks[0].size(), 2);
  EXPECT_NEAR(run.ranks[0][1].begin, 1.5, kTolerance);
  EXPECT_EQ(replay(RankPrograms(2)).time, 0);
}

TEST(Replay, HidesMessagesBehindComputing) {
  Ranks ranks(1);
  const auto message = ranks.message(100, 0.25);  // 1.25 s
  ranks.programs.begin(0, message);
  ranks.compute(0, 1);
  ranks.programs.wait(0, message);
  const Replay run = replay(ranks.programs);
  EXPECT_NEAR(run.time, 1.25, kTolerance);
  EXPECT_NEAR(run.waiting(0, "message"), 0.25, kTolerance);
  EXPECT_NEAR(run.travelling.at("message"), 1.25, kTolerance);
  EXPECT_NEAR(run.overlap("message"), 0.8, kTolerance);
  EXPECT_EQ(run.waiting(0, "other"), 0);
}

TEST(Replay, SharesALinkAmongMessages) {
  Ranks ranks(2);
  const auto first = ranks.message(100), second = ranks.message(200);
  ranks.programs.begin(0, first);
  ranks.programs.begin(1, second);
  ranks.programs.wait(0, first);
  ranks.programs.wait(1, second);
  const Replay run = replay(ranks.programs);
  // Both run at 50 per second until the first ends at 2 s, then one at 100.
  EXPECT_NEAR(run.ranks[0].back().end, 2, kTolerance);
  EXPECT_NEAR(run.ranks[1].back().end, 3, kTolerance);
}

TEST(Replay, LetsTasksTakeTurns) {
  const auto ends_with = [](double turn) {
    RankPrograms programs(4);
    const auto processors = programs.add_resource(
        {.name = "processors", .capacity = 2, .turn = turn});
    for (std::size_t rank = 0; rank < 4; ++rank) {
      programs.compute(rank, processors, 1, "first");
      programs.compute(rank, processors, 1, "second");
    }
    std::vector<double> ends;
    for (const auto& spans : replay(programs).ranks) {
      for (const ReplaySpan& span : spans) ends.push_back(span.end);
    }
    return ends;
  };
  const auto are = [](const std::vector<double>& ends) {
    return ::testing::Pointwise(::testing::DoubleNear(kTolerance), ends);
  };
  // Two at a time: those that came first, and then the other two.
  EXPECT_THAT(
      ends_with(std::numeric_limits<double>::infinity()),
      are({1, 3, 1, 3, 2, 4, 2, 4}));
  // In turns of 0.75 s: each task of 1 s also needs a second turn, of 0.25 s.
  EXPECT_THAT(ends_with(0.75), are({1.75, 3.75, 1.75, 3.75, 2, 4, 2, 4}));
}

TEST(Replay, GoesAtTheRateOfTheSlowestResource) {
  RankPrograms programs(1);
  const auto fast = programs.add_resource({"fast", 100, 100});
  const auto slow = programs.add_resource({"slow", 100, 10});
  const auto message = programs.add_message(
      {"message", 1, 0, {{30, {fast, slow}}, {50, {fast}}}});
  programs.begin(0, message);
  programs.wait(0, message);
  // 50 at 50 per second, in parallel with 30 at 10.
  EXPECT_NEAR(replay(programs).time, 3, kTolerance);
}

TEST(Replay, WaitsForAllSenders) {
  Ranks ranks(2);
  const auto message = ranks.message(0, 0.5, 2);
  ranks.compute(0, 1);
  ranks.compute(1, 3);
  for (const std::size_t rank : {0, 1}) {
    ranks.programs.begin(rank, message);
    ranks.programs.wait(rank, message);
  }
  const Replay run = replay(ranks.programs);
  EXPECT_NEAR(run.time, 3.5, kTolerance);
  EXPECT_NEAR(run.waiting(0), 2.5, kTolerance);
  EXPECT_NEAR(run.bubble(), 3.0 / 7, kTolerance);
}

TEST(Replay, SharesProcessorsAmongRanks) {
  RankPrograms programs(3);
  const auto processors = programs.add_resource({"processors", 2, 1});
  for (const std::size_t rank : {0, 1, 2})
    programs.compute(rank, processors, rank == 2 ? 2 : 1, "work");
  const Replay run = replay(programs);
  // Three run at 2/3 speed until 1.5 s, then the last one alone.
  EXPECT_NEAR(run.ranks[0].back().end, 1.5, kTolerance);
  EXPECT_NEAR(run.time, 2.5, kTolerance);
}

TEST(Replay, SaysWhoWaitsForever) {
  Ranks ranks(2);
  const auto message = ranks.message(1, 0, 2);
  ranks.programs.begin(0, message);
  ranks.programs.wait(0, message);
  EXPECT_EQ(
      replay(ranks.programs).deadlock,
      "rank 0 waits forever for a message of kind \"message\"");
}

// Replays the schedule as programs whose messages take `transfer` seconds.
Replay replay_schedule(
    const PipelineSchedule& schedule,
    const PipelineTimes& times) {
  using Kind = PipelineActionKind;
  Ranks ranks(schedule.ranks.size());
  std::map<std::tuple<int, int, bool>, std::size_t> messages;
  const auto message = [&](int stage, int micro_batch, bool is_gradient) {
    const auto [place, is_new] =
        messages.try_emplace({stage, micro_batch, is_gradient});
    if (is_new) {
      place->second = ranks.programs.add_message(
          {"pipeline", 1, schedule.num_ranks > 1 ? times.transfer : 0, {}});
    }
    return place->second;
  };
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const PipelineAction& action : schedule.ranks[rank]) {
      const int stage = schedule.stage(static_cast<int>(rank), action.chunk);
      const int last = schedule.num_stages() - 1;
      const int i = action.micro_batch;
      if (action.kind == Kind::forward) {
        if (stage > 0) ranks.programs.wait(rank, message(stage - 1, i, false));
        ranks.compute(rank, times.forward);
        if (stage < last) ranks.programs.begin(rank, message(stage, i, false));
        continue;
      }
      if (action.kind != Kind::backward_weight && stage < last)
        ranks.programs.wait(rank, message(stage + 1, i, true));
      double seconds = 0;
      if (action.kind != Kind::backward_weight) seconds += times.backward_input;
      if (action.kind != Kind::backward_input) seconds += times.backward_weight;
      ranks.compute(rank, seconds);
      if (action.kind != Kind::backward_weight && stage > 0)
        ranks.programs.begin(rank, message(stage, i, true));
    }
  }
  return replay(ranks.programs);
}

TEST(Replay, AgreesWithTheSimulationOfPipelines) {
  const PipelineTimes times{
      .forward = 1,
      .backward_input = 1.25,
      .backward_weight = 0.75,
      .transfer = 0.1};
  for (const auto& [kind, chunks] :
       {std::pair(PipelineScheduleKind::gpipe, 1),
        std::pair(PipelineScheduleKind::one_f_one_b, 1),
        std::pair(PipelineScheduleKind::interleaved_1f1b, 2),
        std::pair(PipelineScheduleKind::zero_bubble, 1)}) {
    for (const int ranks : {1, 2, 4, 7}) {
      const PipelineSchedule schedule =
          make_pipeline_schedule(kind, ranks, 3 * ranks, chunks);
      const PipelineSimulation expected = simulate_pipeline(schedule, times);
      const Replay found = replay_schedule(schedule, times);
      EXPECT_EQ(found.deadlock, "");
      EXPECT_NEAR(found.time, expected.time, 1e-6)
          << name_of(kind) << " on " << ranks;
      EXPECT_NEAR(found.bubble(), expected.bubble, 1e-6);
    }
  }
}

TEST(Replay, ShowsARingThatHidesItsBlocks) {
  // Each block is received while the previous one is used.
  const auto ring = [](double transfer, int steps) {
    Ranks ranks(1);
    std::size_t next = 0;
    for (int step = 0; step < steps; ++step) {
      if (step > 0) ranks.programs.wait(0, next);
      if (step + 1 < steps) {
        next = ranks.message(100 * transfer);
        ranks.programs.begin(0, next);
      }
      ranks.compute(0, 1);
    }
    return replay(ranks.programs).time;
  };
  EXPECT_NEAR(ring(0.9, 4), 4, kTolerance);
  EXPECT_NEAR(ring(1.5, 4), 3 * 1.5 + 1, kTolerance);
}

}  // namespace replay_test
}  // namespace accelerate::detail
