#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

namespace accelerate::detail {

/// A function of numbers that Python computes outside of operators.
using SizeFunction = c10::IValue (*)(const std::vector<c10::IValue>& arguments);

/// The function that a program calls "_operator.add" or "torch.sym_max"; null
/// if it is not known. It throws ConfigError for results that Python cannot
/// compute either, or that do not fit into 64 bits.
SizeFunction size_function(const std::string& target);

}  // namespace accelerate::detail
