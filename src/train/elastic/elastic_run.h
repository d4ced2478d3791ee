#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/elastic.h>

#include "config/rank_variables.h"
#include "launch/elastic/elastic_seat.h"

namespace accelerate::detail {

class MachineStates;

/// What an ElasticContext shares with run_elastic(): one generation.
struct ElasticRun {
  /// Those of the program; what it left unset is as the launcher says.
  ElasticOptions options;
  /// The settings of the launcher that decided one of them.
  std::vector<std::string> used_settings = {};
  RankVariables identity;
  /// Null where the launcher replaces no ranks.
  ElasticSeat* seat = nullptr;
  /// The most ranks that the group may have, as far as the launcher tells.
  int most_ranks = 1;
  /// Steps from one state in memory to the next; 0: none are kept.
  int steps_between_states = 0;
  /// The number of the next save in memory.
  std::int64_t num_saves = 0;
  /// The number of the project's next checkpoint when the generation began.
  std::int64_t next_checkpoint = 0;
  /// True once the ranks know that the directory in memory is there.
  bool has_directory = false;
  std::int64_t num_steps = 0;
  std::optional<SaveTicket> newest = std::nullopt;
  /// The states in memory where there are several machines; else null.
  std::shared_ptr<MachineStates> machines = nullptr;
  /// What gradient_accumulation_steps() could not do as it was asked to.
  std::string remark = {};
  bool is_resizing = false;
  bool is_preempted = false;
};

}  // namespace accelerate::detail
