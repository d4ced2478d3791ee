#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include <nlohmann/json.hpp>

namespace accelerate::detail {

/// JSON that keeps the order of its keys. It searches for a key from the first
/// one on: objects that may have many are filled through JsonMembers.
using JournalJson = nlohmann::ordered_json;

/// Finds and adds the members of one object in constant time each.
class JsonMembers {
 public:
  /// The member of that name, which is added if it is missing. All calls are for
  /// the same object, which nothing else changes meanwhile; it may be moved.
  JournalJson& of(JournalJson& object, const std::string& name);

 private:
  std::unordered_map<std::string, std::size_t> places_;
};

/// The JSON text, on one line.
std::string json_text(const JournalJson& json);

/// Parses the body of an event, in time and memory in proportion to its size.
/// If members have the same name, the last one counts. Nothing if it is not JSON,
/// or is nested deeper than `kMostJsonDepth`.
std::optional<JournalJson> parse_journal_json(std::string_view text);

}  // namespace accelerate::detail
