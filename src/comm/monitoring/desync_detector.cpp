#include "comm/monitoring/desync_detector.h"

#include <chrono>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
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
          format("{} {} {}", *question, position.passes, position.collectives));
      answered = *question;
    }
  } catch (const std::exception&) {
    // The store is gone, so no rank will ask anymore.
  }
}

void DesyncDetector::ask(const std::string& call) {
  if (world_.size() == 1) return;
  if (!store_) store_ = open(world_);
  const Position mine = position_();
  for (int rank = 0; rank < world_.size() && question_ > 0; ++rank) {
    const auto answer = find(*store_, std::to_string(rank));
    if (!answer) continue;
    const std::vector<std::string> fields = split(*answer, ' ');
    if (fields.size() != 3) continue;
    const std::int64_t passes = parse_int(fields[1]).value_or(0);
    const std::int64_t collectives = parse_int(fields[2]).value_or(0);
    if (passes <= mine.passes && collectives <= mine.collectives) continue;
    throw DistributedError(format(
        "[comm] {} was called on rank {}, but rank {} has gone on without it, "
        "to {}{}; all ranks must call {}, not only some of them",
        call,
        world_.rank(),
        rank,
        passes > mine.passes ? "backward pass " : "collective ",
        passes > mine.passes ? passes : collectives,
        call));
  }
  question_ = store_->add("number of questions", 1);
  put(*store_, kQuestion, std::to_string(question_));
}

}  // namespace accelerate::detail
