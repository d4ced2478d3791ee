#include "comm/monitoring/board_diagnosis.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <unistd.h>

#include "base/text/text.h"
#include "launch/board/process_state.h"
#include "launch/board/rank_activity.h"

namespace accelerate::detail {

namespace {

using Ranks = std::vector<RankActivity>;

std::string where(const RankActivity& rank, const std::string& group) {
  std::string text =
      format("{}, step {}", describe(rank.phase), rank.num_steps);
  const GroupCall* const call = find_call(rank, group);
  if (call != nullptr && call->number > 0)
    text += "; its last call: " + describe(*call);
  return text;
}

// A rank that is a thread, or has destroyed its World, leaves before its
// process ends.
bool is_gone(const RankActivity& rank) {
  const bool is_other = rank.process != 0 && rank.process != ::getpid();
  return rank.wait_status || rank.state == BoardPageState::finished ||
      (is_other && has_ended(rank.process));
}

std::string describe_end(const RankActivity& rank) {
  if (!rank.ending.empty()) return rank.ending;
  return has_ended(rank.process)
      ? "has ended"
      : "has ended or closed the connection (an exception, or the end of its "
        "program, destroyed its World)";
}

std::string describe_ended(const RankActivity& rank, const std::string& group) {
  std::string text = format(
      "rank {} (process {}) {}, {}",
      rank.rank,
      rank.process,
      describe_end(rank),
      where(rank, group));
  if (rank.state == BoardPageState::failed)
    text += format("; it failed: {}", rank.failure);
  if (!rank.last_output.empty())
    text += format("; its last output:\n{}", rank.last_output);
  return text;
}

// Ranks that ended without having lost a peer, or all that ended if there are
// none.
std::vector<std::string> find_ended(
    const Ranks& ranks,
    const std::string& group) {
  std::vector<std::string> causes, all;
  for (const RankActivity& rank : ranks) {
    if (!is_gone(rank)) continue;
    std::string text = describe_ended(rank, group);
    if (rank.state != BoardPageState::failed) causes.push_back(text);
    all.push_back(std::move(text));
  }
  return causes.empty() ? all : causes;
}

// Each rank's call, if calls differ at the place where `own_rank` is.
std::vector<std::string>
find_disagreement(const Ranks& ranks, int own_rank, const std::string& group) {
  const auto own = std::ranges::find(ranks, own_rank, &RankActivity::rank);
  const GroupCall* const mine =
      own == ranks.end() ? nullptr : find_call(*own, group);
  if (mine == nullptr || mine->number == 0) return {};
  std::vector<std::string> texts{"the ranks made different calls"};
  bool all_agree = true;
  for (const RankActivity& rank : ranks) {
    const GroupCall* const call = find_call(rank, group);
    if (call == nullptr || call->number != mine->number) continue;
    all_agree = all_agree && call->agrees_with(*mine);
    texts.push_back(format("rank {}: {}", rank.rank, describe(*call)));
  }
  return all_agree ? std::vector<std::string>{} : texts;
}

std::vector<std::string> find_failed(const Ranks& ranks) {
  std::vector<std::string> texts;
  for (const RankActivity& rank : ranks) {
    if (rank.state == BoardPageState::failed)
      texts.push_back(format("rank {} failed: {}", rank.rank, rank.failure));
  }
  return texts;
}

std::vector<std::string>
find_late(const Ranks& ranks, int own_rank, const std::string& group) {
  std::uint64_t number = 0;
  for (const RankActivity& rank : ranks) {
    const GroupCall* const call = find_call(rank, group);
    if (rank.rank == own_rank && call != nullptr) number = call->number;
  }
  std::vector<std::string> texts;
  for (const RankActivity& rank : ranks) {
    const GroupCall* const call = find_call(rank, group);
    const char state = process_state(rank.process);
    const bool is_stopped = state == 'T' || state == 't';
    if (call == nullptr || (call->number >= number && !is_stopped)) continue;
    texts.push_back(format(
        "rank {} (process {}) did not arrive: {}{}",
        rank.rank,
        rank.process,
        where(rank, group),
        is_stopped ? "; its process is stopped" : ""));
  }
  return texts;
}

Ranks members_of(const WorldBoard& board, const std::vector<int>& world_ranks) {
  Ranks ranks = read_activities(board.board());
  std::erase_if(ranks, [&](const RankActivity& rank) {
    return std::ranges::find(world_ranks, rank.rank) == world_ranks.end();
  });
  return ranks;
}

}  // namespace

bool is_gone(const WorldBoard& board, int rank) {
  const Ranks ranks = members_of(board, {rank});
  return !ranks.empty() && is_gone(ranks.front());
}

bool has_ended(const WorldBoard& board, int rank) {
  const Ranks ranks = members_of(board, {rank});
  if (ranks.empty() || !is_gone(ranks.front())) return false;
  const RankActivity& found = ranks.front();
  const bool is_thread = found.process == 0 || found.process == ::getpid();
  return is_thread || found.wait_status || has_ended(found.process);
}

std::string describe_newest_call(
    const WorldBoard& board,
    const std::string& group) {
  const RankActivity own = read_activity(board.board(), board.writer().index());
  const GroupCall* const call = find_call(own, group);
  if (call == nullptr || call->number == 0) return {};
  GroupCall without_place = *call;
  without_place.place.clear();
  return format("{}\n{}", describe(without_place), describe(*call));
}

std::optional<std::string> diagnose_by_board(
    const WorldBoard& board,
    const std::string& group,
    const std::vector<int>& world_ranks,
    int rank,
    bool is_timeout) {
  constexpr std::chrono::milliseconds kPause{2};
  constexpr int kMostLooks = 50;
  std::vector<std::string> ended;
  bool has_status = false;
  for (int look = 0; look < kMostLooks && !has_status; ++look) {
    if (look > 0) std::this_thread::sleep_for(kPause);
    const Ranks ranks = members_of(board, world_ranks);
    ended = find_ended(ranks, group);
    // A launcher reports how a rank ended a moment after it has ended.
    has_status = std::ranges::any_of(ranks, [](const RankActivity& each) {
      return each.wait_status.has_value();
    });
    if (is_timeout && ended.empty()) break;
    const bool has_launcher = board.board().header().supervisor != ::getpid();
    if (!ended.empty() && !has_launcher) break;
  }
  if (!ended.empty()) return join(ended, "\n  ");
  const Ranks ranks = members_of(board, world_ranks);
  std::vector<std::string> texts = find_disagreement(ranks, rank, group);
  if (texts.empty()) texts = find_failed(ranks);
  if (texts.empty() && is_timeout) texts = find_late(ranks, rank, group);
  if (texts.empty()) return std::nullopt;
  return join(texts, "\n  ");
}

}  // namespace accelerate::detail
