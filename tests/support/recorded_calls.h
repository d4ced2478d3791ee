#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

// Values and calls as the oracle's topic "trackers" has them.

namespace accelerate::testing {

/// A recorded value. Where numbers are meant, "inf", "-inf" and "nan" are
/// numbers.
TrackedValue tracked_value(const nlohmann::ordered_json& value);

/// The values of an object; none for null.
TrackedValues tracked_values(const nlohmann::ordered_json& values);

/// The reverse of tracked_value().
nlohmann::json recorded_json(const TrackedValue& value);

/// The images of a call of log_images. What was recorded says nothing of the
/// order of the sizes, which some packages take as it comes.
TrackedImages recorded_images(
    const nlohmann::ordered_json& call,
    const std::string& layout = "NCHW");

/// The step of a call, without a time.
LogTime recorded_time(const nlohmann::ordered_json& call);

/// Starts the tracker and makes the case's calls, one a second.
void make_recorded_calls(
    GeneralTracker& tracker,
    const nlohmann::ordered_json& input,
    const std::string& layout = "NCHW");

}  // namespace accelerate::testing
