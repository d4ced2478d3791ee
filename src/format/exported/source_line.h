#pragma once

#include <string>
#include <string_view>

namespace accelerate::detail {

/// The place in a Python stack trace that a user would look at: the last call
/// outside of PyTorch, or the last one: "model.py:12: return self.head(x)".
/// Empty if there is none.
std::string source_line(std::string_view stack_trace);

}  // namespace accelerate::detail
