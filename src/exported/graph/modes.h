#pragma once

#include <string_view>

namespace accelerate::detail {

/// Arguments through which Python's modules tell an operator whether they
/// train: a flag, or the probability of dropout. Empty if there is none.
struct ModeArguments {
  std::string_view training;
  std::string_view dropout;
};

/// `name` is qualified, without the overload: "aten::batch_norm".
/// accelerate_cpp_export.py has the same table.
ModeArguments mode_arguments(std::string_view name);

}  // namespace accelerate::detail
