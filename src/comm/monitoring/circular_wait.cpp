#include "comm/monitoring/circular_wait.h"

#include <algorithm>
#include <set>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Ranks = std::vector<RankActivity>;

// The call in which the rank's program is blocked; null if it is in none.
const GroupCall* blocking_call(const RankActivity& rank) {
  if (rank.state != BoardPageState::running || rank.wait_status) return nullptr;
  for (const GroupCall& call : rank.calls) {
    if (!call.has_ended && call.blocks_program) return &call;
  }
  return nullptr;
}

// Whether `call`, made by `rank`, cannot end before `other` makes it as well.
// With a root, some ranks need only that one, and others none.
bool needs(const GroupCall& call, int rank, int other) {
  if (call.root < 0) return true;
  const bool from_root =
      call.operation.starts_with("broadcast") || call.operation == "scatter";
  return from_root ? other == call.root : rank == call.root;
}

// Ranks that have not begun `call`, and that it needs.
std::vector<int>
missing_in(const Ranks& ranks, int rank, const GroupCall& call) {
  std::vector<int> missing;
  for (const RankActivity& other : ranks) {
    const GroupCall* const theirs = find_call(other, call.group);
    if (theirs != nullptr && theirs->number < call.number &&
        needs(call, rank, other.rank))
      missing.push_back(other.rank);
  }
  return missing;
}

bool find_chain(
    const Ranks& ranks,
    int own_rank,
    int rank,
    std::set<int>& seen,
    std::vector<WaitingCall>& chain) {
  if (!seen.insert(rank).second) return false;
  const auto found = std::ranges::find(ranks, rank, &RankActivity::rank);
  if (found == ranks.end()) return false;
  const GroupCall* const call = blocking_call(*found);
  if (call == nullptr) return false;
  chain.emplace_back(rank, *call);
  for (const int next : missing_in(ranks, rank, *call)) {
    if (next == own_rank || find_chain(ranks, own_rank, next, seen, chain))
      return true;
  }
  chain.pop_back();
  return false;
}

}  // namespace

std::vector<WaitingCall>
find_circular_wait(const Ranks& ranks, int own_rank, int awaited) {
  std::vector<WaitingCall> chain;
  std::set<int> seen{own_rank};
  if (!find_chain(ranks, own_rank, awaited, seen, chain)) chain.clear();
  return chain;
}

bool is_same_wait(
    const std::vector<WaitingCall>& left,
    const std::vector<WaitingCall>& right) {
  return std::ranges::equal(
      left, right, [](const WaitingCall& a, const WaitingCall& b) {
        return a.first == b.first && a.second.group == b.second.group &&
            a.second.number == b.second.number;
      });
}

std::string describe_circular_wait(
    const std::vector<WaitingCall>& waits,
    int own_rank,
    const std::string& call) {
  std::vector<std::pair<int, std::string>> calls{{own_rank, call}};
  for (const auto& [rank, in] : waits) calls.emplace_back(rank, describe(in));
  std::ranges::sort(calls);
  std::vector<int> ranks;
  std::string lines;
  for (const auto& [rank, description] : calls) {
    ranks.push_back(rank);
    lines += format("\n  rank {}: {}", rank, description);
  }
  return format(
      "[comm] {} wait for each other, because they made different calls; "
      "all ranks must make the same:{}",
      describe_ranks(ranks),
      lines);
}

}  // namespace accelerate::detail
