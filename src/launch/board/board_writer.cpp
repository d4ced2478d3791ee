#include "launch/board/board_writer.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/text/text.h"
#include "launch/board/board_page.h"

namespace accelerate::detail {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kRelease = std::memory_order_release;

// Makes readers and other writers wait while it stores words.
template <std::size_t size>
class StoreScope {
 public:
  explicit StoreScope(VersionedWords<size>& target) : target_(target) {
    do {
      version_ = target_.version.load(kRelaxed) & ~1U;
    } while (!target_.version.compare_exchange_weak(
        version_, version_ + 1, std::memory_order_acquire, kRelaxed));
  }
  StoreScope(const StoreScope&) = delete;
  StoreScope& operator=(const StoreScope&) = delete;
  ~StoreScope() { target_.version.store(version_ + 2, kRelease); }

  void store(const std::array<std::uint64_t, size>& words) {
    // A reader that sees one of these sees the odd version as well.
    for (std::size_t i = 0; i < size; ++i)
      target_.words[i].store(words[i], kRelease);
  }

 private:
  VersionedWords<size>& target_;
  std::uint32_t version_ = 0;
};

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  return (hash ^ value) * kOdd + (hash >> 29U);
}

std::uint16_t one_more(int rank) {
  return static_cast<std::uint16_t>(std::clamp(rank, -1, 0xfffe) + 1);
}

std::string_view file_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

std::uint64_t BoardLaneWriter::begin(const NotedCall& call) noexcept {
  StoreScope scope(lane_.call);
  const std::uint64_t number = ++count_;
  const auto slot =
      [](auto& known, const void* address, std::uint32_t salt) -> Known& {
    const auto bits = reinterpret_cast<std::uintptr_t>(address) / 8 + salt;
    return known[bits % known.size()];
  };
  const Known& operation =
      known(slot(operations_, call.operation, 0), call.operation);
  PackedCall packed;
  packed.operation = operation.text;
  packed.root = one_more(call.root);
  packed.blocks_program = call.blocks_program;
  std::uint64_t signature = mix(operation.hash, packed.root);
  if (call.dtype != nullptr) {
    const Known& dtype = known(slot(dtypes_, call.dtype, 0), call.dtype);
    packed.dtype = dtype.text;
    signature = mix(signature, dtype.hash);
  }
  if (call.place.file != nullptr) {
    packed.place =
        known(slot(places_, call.place.file, call.place.line), call.place).text;
  }
  std::array<std::uint64_t, BoardLane::kWords> words{
      number, 0, packed.word(), call.shape.size()};
  for (std::size_t i = 0; i < call.shape.size(); ++i) {
    const auto size = static_cast<std::uint64_t>(call.shape[i]);
    signature = mix(signature, size);
    if (i < BoardLane::kMostDims) words[4 + i] = size;
  }
  words[1] = signature;
  scope.store(words);
  return number;
}

void BoardLaneWriter::end(std::uint64_t number) noexcept {
  std::uint64_t before = lane_.ended.load(kRelaxed);
  while (before < number &&
         !lane_.ended.compare_exchange_weak(before, number, kRelease)) {
  }
}

const BoardLaneWriter::Known& BoardLaneWriter::known(
    Known& entry,
    const char* text) noexcept {
  if (entry.address != text) {
    entry = {
        .address = text,
        .text = writer_.number_of(text),
        .hash = std::hash<std::string_view>{}(text)};
  }
  return entry;
}

const BoardLaneWriter::Known& BoardLaneWriter::known(
    Known& entry,
    const CallPlace& place) noexcept {
  if (entry.address != place.file || entry.line != place.line) {
    entry = {
        .address = place.file,
        .line = place.line,
        .text = writer_.number_of(
            place.line == 0
                ? std::string(place.file)
                : format("{}:{}", file_name(place.file), place.line))};
  }
  return entry;
}

BoardWriter::BoardWriter(Board board, int index, int rank)
    : board_(std::move(board)), index_(index), page_(board_.page(index)) {
  page_.process.store(::getpid());
  page_.rank.store(rank);
  page_.state.store(BoardPageState::running);
  page_.phase.store(static_cast<std::uint32_t>(RankPhase::starting));
}

BoardWriter::~BoardWriter() { finish(); }

void BoardWriter::finish() noexcept {
  // A child that inherited the mapping is not the rank.
  if (page_.process.load() != ::getpid()) return;
  BoardPageState running = BoardPageState::running;
  page_.state.compare_exchange_strong(running, BoardPageState::finished);
}

BoardLaneWriter* BoardWriter::add_lane(std::string_view group) {
  const std::lock_guard lock(mutex_);
  const auto found = lanes_.find(group);
  if (found != lanes_.end()) return found->second.get();
  const std::uint32_t number = page_.num_lanes.load(kRelaxed);
  if (number == BoardPage::kMostLanes) return nullptr;
  BoardLane& lane = page_.lanes[number];
  set_text(lane.group, group);
  page_.num_lanes.store(number + 1, kRelease);
  auto writer = std::make_unique<BoardLaneWriter>(*this, lane);
  return lanes_.emplace(group, std::move(writer)).first->second.get();
}

RankPhase BoardWriter::enter(RankPhase phase) noexcept {
  const auto before = static_cast<RankPhase>(page_.phase.load(kRelaxed));
  page_.phase.store(static_cast<std::uint32_t>(phase), kRelaxed);
  page_.num_phases.store(page_.num_phases.load(kRelaxed) + 1, kRelease);
  return before == RankPhase::starting ? RankPhase::between : before;
}

void BoardWriter::set_num_steps(std::uint64_t num_steps) noexcept {
  page_.num_steps.store(num_steps, kRelease);
}

void BoardWriter::note_duration(
    RankPhase phase,
    std::uint32_t microseconds) noexcept {
  PhaseDurations& durations = page_.durations[static_cast<std::size_t>(phase)];
  const std::uint64_t count = durations.count.load(kRelaxed);
  durations.microseconds[count % PhaseDurations::kKept].store(
      microseconds, kRelaxed);
  durations.count.store(count + 1, kRelease);
}

std::uint32_t BoardWriter::begin_wait(
    const char* what,
    std::span<const int> peers) noexcept {
  const std::uint16_t text = number_of(what);
  const std::lock_guard lock(mutex_);
  const auto place = static_cast<std::uint32_t>(std::countr_one(busy_waits_));
  if (place >= BoardPage::kMostWaits) return 0;
  busy_waits_ |= 1U << place;
  BoardWait& wait = page_.waits[place];
  std::array<std::uint64_t, BoardWait::kWords> words{
      wait.ended.load(kRelaxed) + 1, PackedCall{.operation = text}.word()};
  for (std::size_t i = 0;
       i < std::min(peers.size(), std::size_t{BoardWait::kMostPeers});
       ++i)
    words[2 + i / 4] |= std::uint64_t{one_more(peers[i])} << 16U * (i % 4);
  StoreScope(wait.wait).store(words);
  return place + 1;
}

void BoardWriter::end_wait(std::uint32_t number) noexcept {
  if (number == 0) return;
  const std::lock_guard lock(mutex_);
  BoardWait& wait = page_.waits[number - 1];
  wait.ended.fetch_add(1, kRelease);
  busy_waits_ &= ~(1U << (number - 1));
}

void BoardWriter::set_hang_options(
    std::optional<std::chrono::milliseconds> threshold,
    std::optional<std::uint32_t> on_hang) noexcept {
  if (threshold) {
    page_.hang_threshold.store(
        static_cast<std::uint64_t>(threshold->count()) + 1);
  }
  if (on_hang) page_.on_hang.store(*on_hang + 1);
}

void BoardWriter::fail(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (page_.state.load() != BoardPageState::running) return;
  set_text(page_.failure, reason);
  page_.state.store(BoardPageState::failed);
}

std::uint16_t BoardWriter::number_of(std::string_view text) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = texts_.find(text);
  if (found != texts_.end()) return found->second;
  const std::uint32_t used = page_.num_texts.load(kRelaxed);
  if (used == BoardPage::kMostTexts) return 0;
  set_text(page_.texts[used], text);
  page_.num_texts.store(used + 1, kRelease);
  const auto number = static_cast<std::uint16_t>(used + 1);
  texts_.emplace(text, number);
  return number;
}

}  // namespace accelerate::detail
