#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace accelerate::detail {

/// Figures logged together.
struct JournalScalars {
  struct Scalar {
    std::string name;
    double value = 0;

    bool operator==(const Scalar&) const = default;
  };
  std::vector<Scalar> scalars;

  bool operator==(const JournalScalars&) const = default;
};

/// What is not a figure: the configuration of a run, a text, an image, a table.
struct JournalEvent {
  std::string kind;        ///< "config", "text", "image", "warning", ...
  std::string name;        ///< may be empty
  std::string media_type;  ///< of the body, such as "application/json"
  std::string body;

  bool operator==(const JournalEvent&) const = default;
};

/// A process has opened the journal; the body is JSON about it.
struct JournalSession {
  std::string description;

  bool operator==(const JournalSession&) const = default;
};

/// The run goes on from an earlier step: what was logged for later ones is
/// void.
struct JournalRewind {
  bool operator==(const JournalRewind&) const = default;
};

struct JournalEntry {
  double time = 0;  ///< seconds since 1970
  std::optional<std::int64_t> step;
  std::variant<JournalScalars, JournalEvent, JournalSession, JournalRewind>
      content;

  bool operator==(const JournalEntry&) const = default;
};

}  // namespace accelerate::detail
