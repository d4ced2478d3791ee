#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// Named values become objects in their order, none becomes null.
nlohmann::ordered_json wandb_value(const TrackedValue& value);

/// JSON as W&B writes it: NaN, Infinity and -Infinity are numbers, and real
/// numbers keep all digits. Bytes that are not UTF-8 are replaced.
std::string wandb_json(const nlohmann::ordered_json& value);

/// Puts `values` (an object) into `target`, where objects of the same name
/// become one and everything else is replaced.
void merge_wandb_values(
    nlohmann::ordered_json& target,
    const nlohmann::ordered_json& values);

/// Calls `visit` for every value that is not an object of other values, with
/// the names that lead to it.
void visit_wandb_leaves(
    const nlohmann::ordered_json& values,
    const std::function<void(
        const std::vector<std::string>& names,
        const nlohmann::ordered_json& value)>& visit);

}  // namespace accelerate::detail
