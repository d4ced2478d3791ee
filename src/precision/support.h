#pragma once

#include <optional>
#include <string>

#include <c10/core/Device.h>

#include <accelerate/precision.h>

namespace accelerate::detail {

/// Returns the dtype in which autocast computes; nothing for `no`.
std::optional<c10::ScalarType> autocast_dtype(Precision precision);

/// Returns why `device` cannot compute in `precision`, and what to do instead;
/// nothing if it can.
std::optional<std::string> precision_complaint(
    Precision precision,
    c10::Device device);

}  // namespace accelerate::detail
