#include "comm/monitoring/noted_call.h"

#include <algorithm>
#include <atomic>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/monitoring/world_board.h"
#include "launch/board/rank_activity.h"

namespace accelerate::detail {

namespace {

// Null until the rank has made the group.
const BoardLane* find_lane(const BoardPage& page, const std::string& group) {
  const std::uint32_t count = std::min<std::uint32_t>(
      page.num_lanes.load(std::memory_order_acquire), BoardPage::kMostLanes);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (text_of(page.lanes[i].group) == group) return &page.lanes[i];
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<NotedCalls> NotedCalls::make(Options options) {
  BoardLaneWriter* const lane = options.board->writer().add_lane(options.group);
  if (lane == nullptr) return nullptr;
  return std::make_shared<NotedCalls>(std::move(options), *lane);
}

std::uint64_t NotedCalls::begin(const NotedCall& call) {
  const std::uint64_t number = lane_.begin(call);
  if (options_.compares) compare(number);
  return number;
}

// Other ranks may still be making the group; ranks on other machines never
// appear.
void NotedCalls::find_peers() {
  constexpr int kMostSearches = 64;
  if (num_searches_ == kMostSearches) return;
  ++num_searches_;
  const Board& board = options_.board->board();
  peers_.clear();
  for (int i = 0; i < board.num_pages(); ++i) {
    const BoardLane* const lane = find_lane(board.page(i), options_.group);
    if (lane != nullptr && lane != &lane_.lane()) peers_.push_back(lane);
  }
  if (static_cast<int>(peers_.size()) + 1 == options_.size)
    num_searches_ = kMostSearches;
}

void NotedCalls::compare(std::uint64_t number) {
  find_peers();
  // When two ranks compare at once, at least one must see the other's call.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto& own = lane_.lane().call;
  const auto relaxed = std::memory_order_relaxed;
  for (const BoardLane* const peer : peers_) {
    const std::uint32_t version =
        peer->call.version.load(std::memory_order_acquire);
    const bool is_same_place =
        peer->call.words[0].load(std::memory_order_acquire) == number;
    const std::uint64_t signature =
        peer->call.words[1].load(std::memory_order_acquire);
    if (!is_same_place || version % 2 != 0 ||
        peer->call.version.load(relaxed) != version)
      continue;
    if (own.words[0].load(relaxed) == number &&
        own.words[1].load(relaxed) != signature)
      throw_disagreement(number);
  }
}

void NotedCalls::throw_disagreement(std::uint64_t number) const {
  std::vector<std::string> lines;
  for (const RankActivity& rank : read_activities(options_.board->board())) {
    for (const GroupCall& call : rank.calls) {
      if (call.group == options_.group && call.number == number)
        lines.push_back(format("rank {}: {}", rank.rank, describe(call)));
    }
  }
  const std::string message = format(
      "[comm] the ranks of group \"{}\" made different calls:\n  {}",
      options_.group,
      join(lines, "\n  "));
  options_.board->writer().fail(message);
  throw DistributedError(message);
}

}  // namespace accelerate::detail
