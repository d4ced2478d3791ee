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

/// The states that a run keeps in memory.
struct KeptStates {
  /// Number of steps between two states; 0 if none are kept.
  int steps_between = 0;
  /// The number of the next save in memory.
  std::int64_t num_saves = 0;
  /// The number of the project's next checkpoint when the generation began.
  std::int64_t next_checkpoint = 0;
  /// True once the ranks know that the directory in memory exists.
  bool has_directory = false;
  std::optional<SaveTicket> newest = std::nullopt;
  /// The states of several machines; null if there is only one machine.
  std::shared_ptr<MachineStates> machines = nullptr;
};

/// What an ElasticContext shares with run_elastic(): one generation.
struct ElasticRun {
  /// The program's options; the launcher decides what they leave unset.
  ElasticOptions options;
  /// The launcher's settings that decided one of them.
  std::vector<std::string> used_settings = {};
  RankVariables identity;
  /// Null if the launcher replaces no ranks.
  ElasticSeat* seat = nullptr;
  /// The most ranks that the group may have, as far as the launcher says.
  int most_ranks = 1;
  KeptStates kept = {};
  std::int64_t num_steps = 0;
  /// How gradient_accumulation_steps() had to deviate from its request.
  std::string remark = {};
  bool is_resizing = false;
  bool is_preempted = false;
};

}  // namespace accelerate::detail
