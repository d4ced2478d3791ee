#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accelerate/safetensors.h>

namespace accelerate::detail {

/// What is wrong with the boxes of a tensor, for a message; nothing if they are
/// inside it and do not overlap and, with `must_cover`, leave nothing out.
///
/// Takes near-linear time in the number of boxes for layouts made by sharding,
/// over however many dimensions. Boxes interlocked such that comparing them
/// would take much longer are refused, with a message that says so.
///
/// The tensor's number of elements must fit into 64 bits.
std::optional<std::string> complaint_of_boxes(
    const safetensors::Shape& shape,
    const std::vector<const safetensors::Box*>& boxes,
    bool must_cover);

}  // namespace accelerate::detail
