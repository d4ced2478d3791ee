#pragma once

#include <cstdint>
#include <limits>
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

/// Anything but figures, such as the configuration of a run, a text, an image
/// or a table.
struct JournalEvent {
  std::string kind;        ///< "config", "text", "image", "warning", ...
  std::string name;        ///< may be empty
  std::string media_type;  ///< of the body, such as "application/json"
  std::string body;

  bool operator==(const JournalEvent&) const = default;
};

/// A process opened the journal; the description is JSON about it.
struct JournalSession {
  std::string description;

  bool operator==(const JournalSession&) const = default;
};

/// The run continues from an earlier step, so what was logged for later steps
/// is void.
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

/// The step of an entry that follows `step` and was logged without one; the
/// largest step repeats.
constexpr std::int64_t step_after(std::int64_t step) {
  return step < std::numeric_limits<std::int64_t>::max() ? step + 1 : step;
}

}  // namespace accelerate::detail
