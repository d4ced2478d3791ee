#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

// Values and calls in the form of the oracle's topic "trackers".

namespace accelerate::testing {

/// A recorded value. Where numbers are meant, "inf", "-inf" and "nan" are
/// numbers.
TrackedValue tracked_value(const nlohmann::ordered_json& value);

/// The values of an object; empty for null.
TrackedValues tracked_values(const nlohmann::ordered_json& values);

/// The reverse of tracked_value().
nlohmann::json recorded_json(const TrackedValue& value);

/// The images of a log_images call. The recording does not say in which order
/// the sizes are, and some packages take them in any order.
TrackedImages recorded_images(
    const nlohmann::ordered_json& call,
    const std::string& layout = "NCHW");

/// The step of a call; it has no time.
LogTime recorded_time(const nlohmann::ordered_json& call);

/// Starts the tracker and makes the case's calls, one per second.
void make_recorded_calls(
    GeneralTracker& tracker,
    const nlohmann::ordered_json& input,
    const std::string& layout = "NCHW");

}  // namespace accelerate::testing
