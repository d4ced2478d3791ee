#pragma once

#include <nlohmann/json.hpp>

// Cases of the oracle's topic "trackers" in a program's way: by init_trackers(),
// log() and end_training().

namespace accelerate::testing {

/// Runs a case whose kind is a tracker's name; the outcome.
nlohmann::json run_with_tracker(const nlohmann::ordered_json& input);

/// Runs a case of the kind "custom"; the outcome.
nlohmann::json run_with_own_tracker(const nlohmann::ordered_json& input);

}  // namespace accelerate::testing
