#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace accelerate::testing {

/// The cases of this kind in the oracle's topic "trackers".
nlohmann::ordered_json recorded_cases(std::string_view kind);

/// Where two values differ by more than 1e-6 of a number; empty if nowhere.
std::string difference(
    const nlohmann::json& found,
    const nlohmann::json& expected);

/// Plays all cases of a kind on trackers, and expects `count` cases and the
/// recorded outcomes.
void expect_recorded_outcomes(std::string_view kind, std::size_t count);

}  // namespace accelerate::testing
