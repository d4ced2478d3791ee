#include "comm/transport/nccl/departures.h"

#include <exception>
#include <string>

#include "base/text/text.h"
#include "comm/transport/nccl/nccl_library.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A rank's last operation may end there before it ends on other ranks' devices.
constexpr milliseconds kGoneGrace{10};
constexpr milliseconds kLeftGrace{1000};

std::string left_key(int rank) { return format("nccl/left/{}", rank); }

}  // namespace

Departures::Departures(const ConnectRequest& request)
    : store_(request.store),
      own_(request.world_ranks[static_cast<std::size_t>(request.rank)]) {
  for (const int rank : request.world_ranks) {
    if (rank != own_) others_.push_back(rank);
  }
}

std::vector<int> Departures::gone_ranks() const {
  std::vector<int> gone;
  if (!is_gone_) return gone;
  for (const int rank : others_) {
    if (is_gone_(rank)) gone.push_back(rank);
  }
  return gone;
}

void Departures::require_all_ranks() const {
  const std::vector<int> gone = gone_ranks();
  if (!gone.empty()) throw NcclError(format("rank {} has gone", gone.front()));
}

std::optional<int> Departures::lost_rank() {
  for (const int rank : gone_ranks()) {
    const auto now = steady_clock::now();
    const auto [lost, is_new] = lost_at_.try_emplace(rank, now);
    if (is_new) lost->second += has_left(rank) ? kLeftGrace : kGoneGrace;
    if (now >= lost->second) return rank;
  }
  return std::nullopt;
}

bool Departures::has_left(int rank) const {
  try {
    return store_->check({left_key(rank)});
  } catch (const std::exception&) {
    return false;
  }
}

void Departures::leave() const {
  if (!is_gone_) return;
  try {
    store_->set(left_key(own_), "1");
  } catch (const std::exception&) {
    // The store has gone, as have the ranks that could look.
  }
}

}  // namespace accelerate::detail
