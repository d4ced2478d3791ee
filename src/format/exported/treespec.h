#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// Names of the fields of named tuples, by the name of their type.
using NamedTupleFields = std::map<std::string, std::vector<std::string>>;

/// Names of the leaves of a result, from a pytree as torch.export writes it:
/// "logits", "pair.1.0"; "0" and "1" for a tuple; empty for a single tensor.
/// Throws CheckpointError; `name` is used in messages.
std::vector<std::string> result_names(
    std::string_view spec,
    const NamedTupleFields& fields,
    const std::string& name);

/// Names of the leaves of the arguments of forward(), whose own names are
/// `arguments`: positional ones first. Throws as result_names() does.
std::vector<std::string> argument_names(
    std::string_view spec,
    const std::vector<std::string>& arguments,
    const NamedTupleFields& fields,
    const std::string& name);

}  // namespace accelerate::detail
