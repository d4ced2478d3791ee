#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// Converts a value: named values become objects in order, none becomes null.
nlohmann::ordered_json wandb_value(const TrackedValue& value);

/// JSON as W&B writes it: NaN, Infinity and -Infinity are numbers, and real
/// numbers keep all digits. Invalid UTF-8 is replaced.
std::string wandb_json(const nlohmann::ordered_json& value);

/// Merges `values` (an object) into `target`: objects of the same name are
/// merged, everything else is replaced.
void merge_wandb_values(
    nlohmann::ordered_json& target,
    const nlohmann::ordered_json& values);

/// Calls `visit` for every value that is not an object, with the names that
/// lead to it.
void visit_wandb_leaves(
    const nlohmann::ordered_json& values,
    const std::function<void(
        const std::vector<std::string>& names,
        const nlohmann::ordered_json& value)>& visit);

}  // namespace accelerate::detail
