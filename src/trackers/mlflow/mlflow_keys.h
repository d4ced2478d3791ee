#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Why MLflow refuses the name of a metric, parameter or tag; empty if it
/// accepts it.
std::string complaint_about_mlflow_key(std::string_view key);

/// Number of characters in UTF-8 text.
std::size_t num_characters(std::string_view text);
/// The first `most` characters of the text, or all of it.
std::string first_characters(std::string_view text, std::size_t most);

}  // namespace accelerate::detail
