#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace accelerate::detail {

/// Deeper JSON is refused: copying and printing values takes a level of the
/// stack for each.
inline constexpr std::size_t kMostJsonDepth = 512;

struct ParsedJson {
  /// Null if there is a complaint.
  nlohmann::json value;
  /// What is wrong and where, to follow the name of a file: "line 2, column 5:
  /// syntax error ...". Empty for JSON.
  std::string complaint;
};

/// Parses JSON from a file that nobody vouches for, in time and memory linear
/// in its size. Does not throw.
ParsedJson parse_json(std::string_view text);

/// The library's message without its codes, as ParsedJson has it.
std::string json_complaint(const nlohmann::json::exception& error);

}  // namespace accelerate::detail
