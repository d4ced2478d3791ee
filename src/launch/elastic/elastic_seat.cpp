#include "launch/elastic/elastic_seat.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace accelerate::detail {

namespace {

constexpr std::chrono::milliseconds kPause{1};

}  // namespace

ElasticSeat::ElasticSeat(Board board, int index, std::uint32_t first_generation)
    : board_(std::move(board)), index_(index), next_(first_generation) {}

bool ElasticSeat::is_elastic() const { return header().generation.load() > 0; }

int ElasticSeat::most_ranks() const { return header().most_ranks.load(); }

ElasticPlace ElasticSeat::take_place() {
  while (true) {
    // Others may have ended since, which makes it a later generation.
    next_ = std::max(next_, header().target.load());
    seat().arrived.store(next_);
    seat().process.store(::getpid());
    if (header().generation.load() >= next_) break;
    std::this_thread::sleep_for(kPause);
  }
  // The launcher changes these only after this process has arrived again.
  current_ = header().generation.load();
  next_ = current_ + 1;
  ElasticPlace place{current_, seat().rank.load(), header().num_ranks.load()};
  for (int page = 0; page < board_.num_pages(); ++page) {
    const int rank = board_.page(page).seat.rank.load();
    if (rank < 0) continue;
    ++place.num_local_ranks;
    if (rank < place.rank) ++place.local_rank;
  }
  return place;
}

bool ElasticSeat::was_broken(std::chrono::milliseconds patience) const {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!is_broken(board_, current_)) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

std::uint32_t ElasticSeat::wanted() const {
  return std::max(current_, header().wanted.load());
}

void ElasticSeat::withdraw() { seat().process.store(0); }

}  // namespace accelerate::detail
