#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace accelerate::detail {

/// Deeper JSON is refused: copying and printing values recurses once per level.
inline constexpr std::size_t kMostJsonDepth = 512;

struct ParsedJson {
  /// Null if there is a complaint.
  nlohmann::json value;
  /// What is wrong and where, to follow a file name: "line 2, column 5: syntax
  /// error ...". Empty for valid JSON.
  std::string complaint;
};

/// Parses JSON from an untrusted file, in time and memory linear in its size.
/// Does not throw.
ParsedJson parse_json(std::string_view text);

/// The library's message without its codes, as in ParsedJson::complaint.
std::string json_complaint(const nlohmann::json::exception& error);

}  // namespace accelerate::detail
