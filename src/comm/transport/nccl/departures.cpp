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
constexpr milliseconds kGrace{10};

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

std::optional<int> Departures::lost_rank(std::uint64_t operation) {
  for (const int rank : gone_ranks()) {
    auto known = departures_.find(rank);
    if (known == departures_.end())
      known = departures_.emplace(rank, departure_of(rank)).first;
    const auto& [end, num_begun] = known->second;
    const bool is_lost =
        num_begun ? operation > *num_begun : steady_clock::now() >= end;
    if (is_lost) return rank;
  }
  return std::nullopt;
}

Departures::Departure Departures::departure_of(int rank) const {
  Departure departure{steady_clock::now() + kGrace, std::nullopt};
  try {
    if (store_->check({left_key(rank)}))
      departure.num_begun = std::stoull(store_->get_to_str(left_key(rank)));
  } catch (const std::exception&) {
    // The store has gone, as for a rank that has died.
  }
  return departure;
}

void Departures::leave(std::uint64_t num_begun) const {
  if (!is_gone_) return;
  try {
    store_->set(left_key(own_), std::to_string(num_begun));
  } catch (const std::exception&) {
    // The store has gone, as have the ranks that could look.
  }
}

}  // namespace accelerate::detail
