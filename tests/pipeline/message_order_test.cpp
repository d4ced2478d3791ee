// The order in which stages send and receive.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "pipeline/message_order.h"
#include "planning/pipeline/schedule.h"

namespace accelerate {
namespace message_order_test {

using namespace detail;
using Kind = PipelineActionKind;

const std::map<PipelineScheduleKind, int> kChunks{
    {PipelineScheduleKind::gpipe, 1},
    {PipelineScheduleKind::one_f_one_b, 1},
    {PipelineScheduleKind::interleaved_1f1b, 2},
    {PipelineScheduleKind::looped_bfs, 3},
    {PipelineScheduleKind::zero_bubble, 1},
    {PipelineScheduleKind::interleaved_zero_bubble, 2},
    {PipelineScheduleKind::zero_bubble_v, 2},
    {PipelineScheduleKind::dual_pipe_v, 2}};

template <class Function>
void for_each_schedule(Function&& function) {
  for (const auto& [kind, num_chunks] : kChunks) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const int micro_batches : {1, 3, 2 * ranks, 2 * ranks + 3}) {
        SCOPED_TRACE(
            std::string(name_of(kind)) + ", " + std::to_string(ranks) +
            " ranks, " + std::to_string(micro_batches) + " micro-batches");
        function(make_partial_schedule(kind, ranks, micro_batches, num_chunks));
      }
    }
  }
}

TEST(MessageOrder, HasEachMessageOnceBetweenItsStages) {
  for_each_schedule([](const PipelineSchedule& schedule) {
    for (const bool trains : {false, true}) {
      std::set<StageMessage> all;
      for (const StageEdge& edge : stage_edges(schedule, trains)) {
        EXPECT_NE(edge.first, edge.second);
        for (const StageMessage& each : messages_of(schedule, edge, trains)) {
          EXPECT_TRUE(all.insert(each).second);
          const bool is_output = each.kind == StageMessage::Kind::outputs;
          EXPECT_TRUE(is_output || trains);
          EXPECT_EQ(schedule.rank_of(each.stage), edge.first);
          EXPECT_EQ(
              schedule.rank_of(each.stage + (is_output ? 1 : -1)), edge.second);
        }
      }
      std::size_t expected = 0;
      for (int stage = 0; stage + 1 < schedule.num_stages(); ++stage) {
        if (schedule.rank_of(stage) != schedule.rank_of(stage + 1))
          expected += (trains ? 2U : 1U) *
              static_cast<std::size_t>(schedule.num_micro_batches);
      }
      EXPECT_EQ(all.size(), expected);
    }
  });
}

// Ranks whose edges carry one message at a time, in the sender's order. An edge
// takes a message from a rank that has come to it; a rank receives at the
// action that needs it all messages up to its own.
class Ranks {
 public:
  explicit Ranks(const PipelineSchedule& schedule) : schedule_(schedule) {
    for (const StageEdge& edge : stage_edges(schedule, true))
      coming_[edge] = messages_of(schedule, edge, true);
    next_.resize(schedule.ranks.size());
  }

  // Whether all actions are done.
  bool run() {
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (std::size_t rank = 0; rank < next_.size(); ++rank) {
        while (next_[rank] < schedule_.ranks[rank].size() &&
               try_run(static_cast<int>(rank))) {
          ++next_[rank];
          has_moved = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] < schedule_.ranks[rank].size()) return false;
    }
    return std::ranges::all_of(
        coming_, [](const auto& edge) { return edge.second.empty(); });
  }

 private:
  // Gradients are received only into rooms that a forward has left.
  bool can_receive(const StageMessage& message) const {
    return sent_.contains(message) &&
        (message.kind == StageMessage::Kind::outputs ||
         sent_.contains(
             {message.stage - 1,
              message.micro_batch,
              StageMessage::Kind::outputs}));
  }

  bool try_run(int rank) {
    const PipelineAction& action =
        schedule_.ranks[static_cast<std::size_t>(rank)]
                       [next_[static_cast<std::size_t>(rank)]];
    const int stage = schedule_.stage(rank, action.chunk);
    const bool is_forward = action.kind == Kind::forward;
    const int source = is_forward ? stage - 1 : stage + 1;
    const auto kind = is_forward ? StageMessage::Kind::outputs
                                 : StageMessage::Kind::gradients;
    if (action.kind == Kind::backward_weight) return true;
    if (source >= 0 && source < schedule_.num_stages()) {
      const StageMessage needed{source, action.micro_batch, kind};
      const int sender = schedule_.rank_of(source);
      if (sender == rank && !sent_.contains(needed)) return false;
      auto& coming = coming_[{sender, rank}];
      while (sender != rank && !received_.contains(needed)) {
        if (coming.empty() || !can_receive(coming.front())) return false;
        received_.insert(coming.front());
        coming.pop_front();
      }
    }
    sent_.insert({stage, action.micro_batch, kind});
    return true;
  }

  const PipelineSchedule& schedule_;
  std::map<StageEdge, std::deque<StageMessage>> coming_;
  std::vector<std::size_t> next_;
  std::set<StageMessage> sent_;
  std::set<StageMessage> received_;
};

TEST(MessageOrder, LetsEveryScheduleEnd) {
  for_each_schedule([](const PipelineSchedule& schedule) {
    EXPECT_TRUE(Ranks(schedule).run());
  });
}

}  // namespace message_order_test
}  // namespace accelerate
