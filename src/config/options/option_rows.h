#pragma once

#include <span>

#include "config/options/option_table.h"

namespace accelerate::detail {

// The rows of the option table by subject, in help-page order.
std::span<const OptionSpec> launch_option_rows();
std::span<const OptionSpec> sharding_option_rows();
std::span<const OptionSpec> engine_option_rows();
std::span<const OptionSpec> compute_option_rows();
std::span<const OptionSpec> python_option_rows();

}  // namespace accelerate::detail
