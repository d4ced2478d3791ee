#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accelerate/elastic.h>

#include "config/rank_variables.h"
#include "launch/elastic/elastic_seat.h"

namespace accelerate::detail {

/// What an ElasticContext shares with run_elastic(): one generation.
struct ElasticRun {
  ElasticOptions options;
  RankVariables identity;
  /// Null where the launcher replaces no ranks.
  ElasticSeat* seat = nullptr;
  /// The number of the next save in memory.
  int num_saves = 0;
  /// True once the ranks know that the directory in memory is there.
  bool has_directory = false;
  std::int64_t num_steps = 0;
  std::optional<SaveTicket> newest = std::nullopt;
  /// What gradient_accumulation_steps() could not divide.
  std::string remark = {};
  bool is_resizing = false;
  bool is_preempted = false;
};

}  // namespace accelerate::detail
