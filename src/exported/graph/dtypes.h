#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include "format/exported/exported_graph.h"

namespace accelerate::detail {

/// LibTorch's dtype.
at::ScalarType scalar_type(ExportedDtype dtype);
/// LibTorch's dtype with PyTorch's name; unset for other names.
std::optional<at::ScalarType> scalar_type(const std::string& name);

/// A value that is not a list, a reference or a graph, as operators take it.
c10::IValue constant_value(const ExportedArgument& argument);

}  // namespace accelerate::detail
