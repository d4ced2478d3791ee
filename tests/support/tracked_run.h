#pragma once

#include <nlohmann/json.hpp>

// Runs cases of the oracle's topic "trackers" as a program would: with
// init_trackers(), log() and end_training().

namespace accelerate::testing {

/// Runs a case whose kind is a tracker's name, and returns the outcome.
nlohmann::json run_with_tracker(const nlohmann::ordered_json& input);

/// Runs a case of the kind "custom", and returns the outcome.
nlohmann::json run_with_own_tracker(const nlohmann::ordered_json& input);

}  // namespace accelerate::testing
