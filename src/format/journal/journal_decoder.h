#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "format/journal/journal_entry.h"

namespace accelerate::detail {

/// Reads the payload of a frame entry by entry without copying: texts point
/// into the payload, which must outlive the decoder.
class JournalDecoder {
 public:
  enum class Kind { scalars, event, session, rewind };
  struct Scalar {
    std::size_t name = 0;  ///< an index into names()
    double value = 0;
  };
  struct Event {
    std::string_view kind;
    std::string_view name;
    std::string_view media_type;
    std::string_view body;
  };

  /// The checksum of `payload` must have been verified.
  explicit JournalDecoder(std::string_view payload)
      : payload_(payload), rest_(payload) {}

  /// Advances to the next entry; false at the end. Throws Error if this version
  /// does not know its kind, or if it runs beyond the payload.
  bool next();

  // The entry to which next() advanced.

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] double time() const { return time_; }
  [[nodiscard]] std::optional<std::int64_t> step() const { return step_; }
  /// Empty if the entry is of another kind.
  [[nodiscard]] std::span<const Scalar> scalars() const { return scalars_; }
  /// The names in this frame so far.
  [[nodiscard]] const std::vector<std::string_view>& names() const {
    return names_;
  }
  [[nodiscard]] const Event& event() const { return event_; }
  /// Where the body of the event begins in the payload.
  [[nodiscard]] std::size_t body_offset() const {
    return static_cast<std::size_t>(event_.body.data() - payload_.data());
  }
  /// A copy of the entry.
  [[nodiscard]] JournalEntry entry() const;

 private:
  void read_content(char mark);
  void read_scalars();

  std::string_view payload_;
  std::string_view rest_;
  std::vector<std::string_view> names_;
  Kind kind_ = Kind::rewind;
  double time_ = 0;
  std::optional<std::int64_t> step_;
  std::vector<Scalar> scalars_;
  Event event_;
  std::string_view description_;
};

}  // namespace accelerate::detail
