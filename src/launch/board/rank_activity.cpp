#include "launch/board/rank_activity.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/text/text.h"
#include "launch/board/board_page.h"
#include "launch/processes/exit_reason.h"

namespace accelerate::detail {

namespace {

constexpr auto kAcquire = std::memory_order_acquire;

// Returns nothing if nothing was stored yet, or if the writer is stopped in the
// middle of a store. A writer that was merely descheduled gets some
// milliseconds to finish; a report of a dead rank cannot wait longer.
template <std::size_t size>
std::optional<std::array<std::uint64_t, size>> load(
    const VersionedWords<size>& source) {
  constexpr int kSpins = 1000;
  constexpr int kMostAttempts = kSpins + 60;
  constexpr auto kPause = std::chrono::microseconds(100);
  std::array<std::uint64_t, size> words{};
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (attempt >= kSpins) std::this_thread::sleep_for(kPause);
    const std::uint32_t version = source.version.load(kAcquire);
    if (version == 0) return std::nullopt;
    if (version % 2 != 0) continue;
    for (std::size_t i = 0; i < size; ++i)
      words[i] = source.words[i].load(kAcquire);
    if (source.version.load(std::memory_order_relaxed) == version) return words;
  }
  return std::nullopt;
}

std::string text_at(const BoardPage& page, std::uint16_t number) {
  if (number == 0 || number > page.num_texts.load(kAcquire) ||
      number > BoardPage::kMostTexts)
    return {};
  return text_of(page.texts[number - 1]);
}

GroupCall read_call(const BoardPage& page, const BoardLane& lane) {
  // Read first: a call that ends in the meantime counts as in progress, not the
  // reverse.
  const std::uint64_t ended = lane.ended.load(kAcquire);
  const auto words = load(lane.call);
  GroupCall call;
  call.group = text_of(lane.group);
  call.has_ended = true;
  if (!words) return call;
  const PackedCall packed = PackedCall::of((*words)[2]);
  call.number = (*words)[0];
  call.operation = text_at(page, packed.operation);
  call.dtype = text_at(page, packed.dtype);
  call.place = text_at(page, packed.place);
  call.root = packed.root - 1;
  call.blocks_program = packed.blocks_program;
  call.num_dims = (*words)[3];
  const std::size_t dims =
      std::min(call.num_dims, std::size_t{BoardLane::kMostDims});
  for (std::size_t i = 0; i < dims; ++i)
    call.shape.push_back(static_cast<std::int64_t>((*words)[4 + i]));
  call.has_ended = ended >= call.number;
  return call;
}

std::optional<PeerWait> read_wait(
    const BoardPage& page,
    const BoardWait& wait) {
  const auto words = load(wait.wait);
  if (!words || wait.ended.load(kAcquire) >= (*words)[0]) return std::nullopt;
  PeerWait result;
  result.number = (*words)[0];
  result.what = text_at(page, PackedCall::of((*words)[1]).operation);
  for (std::size_t i = 0; i < BoardWait::kMostPeers; ++i) {
    const auto peer =
        static_cast<std::uint16_t>((*words)[2 + i / 4] >> 16U * (i % 4));
    if (peer != 0) result.peers.push_back(peer - 1);
  }
  return result;
}

std::uint32_t median_of(const PhaseDurations& durations, std::uint64_t count) {
  const std::size_t kept = static_cast<std::size_t>(
      std::min<std::uint64_t>(count, PhaseDurations::kKept));
  if (kept == 0) return 0;
  std::vector<std::uint32_t> values;
  for (std::size_t i = 0; i < kept; ++i)
    values.push_back(durations.microseconds[i].load(std::memory_order_relaxed));
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(kept / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

bool GroupCall::agrees_with(const GroupCall& other) const {
  return operation == other.operation && dtype == other.dtype &&
      shape == other.shape && num_dims == other.num_dims && root == other.root;
}

std::string describe(const GroupCall& call) {
  if (call.number == 0) return format("none of group \"{}\"", call.group);
  std::string text = call.operation;
  if (!call.dtype.empty()) {
    std::vector<std::string> dims;
    for (const std::int64_t size : call.shape)
      dims.push_back(std::to_string(size));
    if (call.num_dims > call.shape.size()) dims.emplace_back("...");
    text += format(" ({} [{}])", call.dtype, join(dims, ", "));
  }
  if (call.root >= 0) text += format(" with root {}", call.root);
  text += format(" number {} of group \"{}\"", call.number, call.group);
  if (!call.place.empty()) text += " " + describe_place(call);
  return text;
}

std::string describe_place(const GroupCall& call) {
  if (call.place.empty()) return {};
  return format("{} {}", call.place.ends_with("()") ? "in" : "at", call.place);
}

namespace {

bool is_elastic(const Board& board) {
  return board.header().generation.load() > 0;
}

}  // namespace

const GroupCall* find_call(const RankActivity& rank, const std::string& group) {
  for (const GroupCall& call : rank.calls) {
    if (call.group == group) return &call;
  }
  return nullptr;
}

bool was_killed_for_hang(const BoardPage& page) {
  const std::int32_t process = page.killed_for_hang.load();
  return process != 0 && process == page.process.load();
}

RankActivity read_activity(const Board& board, int index) {
  const BoardPage& page = board.page(index);
  RankActivity rank;
  rank.index = index;
  rank.state = page.state.load(kAcquire);
  rank.rank = rank.state != BoardPageState::empty ? page.rank.load()
      : is_elastic(board)                         ? page.seat.rank.load()
                          : board.header().first_rank + index;
  rank.process = page.process.load();
  rank.phase = static_cast<RankPhase>(
      std::min<std::uint32_t>(page.phase.load(), kNumRankPhases - 1));
  rank.num_phases = page.num_phases.load(kAcquire);
  rank.num_steps = page.num_steps.load(kAcquire);
  const std::size_t num_lanes = std::min<std::size_t>(
      page.num_lanes.load(kAcquire), BoardPage::kMostLanes);
  for (std::size_t i = 0; i < num_lanes; ++i) {
    rank.calls.push_back(read_call(page, page.lanes[i]));
  }
  for (const BoardWait& wait : page.waits) {
    if (auto found = read_wait(page, wait))
      rank.waits.push_back(std::move(*found));
  }
  for (std::size_t i = 0; i < kNumRankPhases; ++i) {
    rank.num_timed[i] = page.durations[i].count.load(kAcquire);
    rank.median_us[i] = median_of(page.durations[i], rank.num_timed[i]);
  }
  if (rank.state == BoardPageState::failed)
    rank.failure = text_of(page.failure);
  if (page.has_ended.load(kAcquire) != 0) {
    rank.wait_status = page.wait_status.load();
    rank.last_output = text_of(page.last_output);
    rank.ending = text_of(page.ending);
  } else if (was_killed_for_hang(page)) {
    rank.ending = kEndedForHang;
  }
  return rank;
}

std::vector<RankActivity> read_activities(const Board& board) {
  std::vector<RankActivity> ranks;
  for (int i = 0; i < board.num_pages(); ++i) {
    const bool is_seated =
        !is_elastic(board) || board.page(i).seat.rank.load() >= 0;
    if (is_seated) ranks.push_back(read_activity(board, i));
  }
  return ranks;
}

std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

const char* describe(RankPhase phase) {
  switch (phase) {
    case RankPhase::starting:
      return "starting";
    case RankPhase::between:
      return "between calls of the library";
    case RankPhase::data:
      return "waiting for the data loader";
    case RankPhase::forward:
      return "in forward";
    case RankPhase::backward:
      return "in backward";
    case RankPhase::optimizer:
      return "in the optimizer";
    case RankPhase::checkpoint:
      return "saving or loading";
  }
  return "unknown";
}

}  // namespace accelerate::detail
