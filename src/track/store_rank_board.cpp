#include "track/store_rank_board.h"

#include <string>
#include <utility>

namespace accelerate::detail {

StoreRankBoard::StoreRankBoard(World world)
    : world_(std::move(world)),
      store_(world_.store().with_prefix("run_figures")) {}

void StoreRankBoard::put(const JournalRank& mine) {
  store_.set(std::to_string(mine.rank), ranks_event({mine}).body);
}

std::vector<JournalRank> StoreRankBoard::others() {
  std::vector<JournalRank> all;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const std::string key = std::to_string(rank);
    if (rank == world_.rank() || !store_.has(key)) continue;
    for (const JournalRank& each : read_ranks(store_.get(key)))
      all.push_back(each);
  }
  return all;
}

}  // namespace accelerate::detail
