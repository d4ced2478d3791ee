#pragma once

#include <string>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// The value as Python's json reads it: with NaN and Infinity, and with a point
/// or an exponent only in real numbers.
std::string python_json(const TrackedValue& value);

}  // namespace accelerate::detail
