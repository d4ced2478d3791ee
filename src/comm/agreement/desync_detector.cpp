#include "comm/agreement/desync_detector.h"

#include <chrono>
#include <map>
#include <sstream>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"
#include "comm/monitoring/board_diagnosis.h"
#include "comm/rendezvous/store.h"

namespace accelerate::detail {

namespace {

constexpr const char* kQuestion = "question";

c10::intrusive_ptr<c10d::Store> open(const World& world) {
  return c10::make_intrusive<c10d::PrefixStore>(
      "desync_detector", own_client(world.store()));
}

std::optional<std::string> find(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  const std::vector<std::uint8_t> bytes = store.get(key);
  return std::string(bytes.begin(), bytes.end());
}

void put(c10d::Store& store, const std::string& key, const std::string& value) {
  store.set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

// Where another rank is, and what it does; the latter may be empty.
struct Answer {
  std::int64_t passes = 0;
  std::int64_t collectives = 0;
  std::string call;
};

// Nothing if no rank wrote it.
std::optional<Answer> parse_answer(const std::string& text) {
  std::istringstream words(text);
  std::int64_t question = 0;
  Answer answer;
  if (!(words >> question >> answer.passes >> answer.collectives)) return {};
  std::getline(words >> std::ws, answer.call);
  return answer;
}

}  // namespace

DesyncDetector::DesyncDetector(
    const World& world,
    std::function<Position()> position)
    : world_(world), position_(std::move(position)) {
  if (world_.size() > 1) thread_ = std::thread([this] { answer(); });
}

DesyncDetector::~DesyncDetector() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DesyncDetector::answer() {
  constexpr std::chrono::milliseconds kPause{500};
  try {
    c10::intrusive_ptr<c10d::Store> store;
    std::string answered;
    std::unique_lock lock(mutex_);
    while (!stopped_.wait_for(lock, kPause, [this] { return is_stopping_; })) {
      if (!store) store = open(world_);
      const auto question = find(*store, kQuestion);
      if (!question || *question == answered) continue;
      const Position position = position_();
      put(*store,
          std::to_string(world_.rank()),
          format(
              "{} {} {} {}",
              *question,
              position.passes,
              position.collectives,
              own_call()));
      answered = *question;
    }
  } catch (const std::exception&) {
    // The store is gone, so no rank will ask anymore.
  }
}

std::string DesyncDetector::own_call() const {
  const auto& board = world_.group().impl()->world->board;
  if (board == nullptr) return {};
  const std::string call =
      describe_newest_call(*board, world_.group().impl()->name);
  return call.substr(call.find('\n') + 1);
}

void DesyncDetector::ask(const std::string& call) {
  if (world_.size() == 1) return;
  if (!store_) store_ = open(world_);
  const Position mine = position_();
  for (int rank = 0; rank < world_.size() && question_ > 0; ++rank) {
    const auto answer = find(*store_, std::to_string(rank));
    if (!answer) continue;
    const auto theirs = parse_answer(*answer);
    if (!theirs ||
        (theirs->passes <= mine.passes &&
         theirs->collectives <= mine.collectives))
      continue;
    const bool has_passed = theirs->passes > mine.passes;
    std::string message = format(
        "[comm] {} was called on rank {}, but rank {} has moved on without it, "
        "to {}{}; all ranks must call {}, not only some of them",
        call,
        world_.rank(),
        rank,
        has_passed ? "backward pass " : "collective ",
        has_passed ? theirs->passes : theirs->collectives,
        call);
    if (!theirs->call.empty()) {
      message += ":";
      const std::map<int, std::string> calls{
          {world_.rank(), call}, {rank, theirs->call}};
      for (const auto& [each, what] : calls)
        message += format("\n  rank {}: {}", each, what);
    }
    throw DistributedError(message);
  }
  question_ = store_->add("number of questions", 1);
  put(*store_, kQuestion, std::to_string(question_));
}

}  // namespace accelerate::detail
