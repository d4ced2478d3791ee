#pragma once

#include <vector>

#include <accelerate/world.h>

#include "track/run_figures.h"

namespace accelerate::detail {

/// A board in the store of a world. It uses the world's own connection, with
/// short requests only.
class StoreRankBoard final : public RankBoard {
 public:
  explicit StoreRankBoard(World world);

  void put(const JournalRank& mine) override;
  std::vector<JournalRank> others() override;

 private:
  World world_;
  Store store_;
};

}  // namespace accelerate::detail
