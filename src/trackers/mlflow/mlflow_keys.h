#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Why MLflow refuses a name of a metric, parameter or tag; empty if it takes
/// it.
std::string complaint_about_mlflow_key(std::string_view key);

/// The length of UTF-8 in characters.
std::size_t num_characters(std::string_view text);
/// At most so many characters from the beginning.
std::string first_characters(std::string_view text, std::size_t most);

}  // namespace accelerate::detail
