#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "format/journal/journal_entry.h"

namespace accelerate::detail {

// A journal is a sequence of frames, each of which holds what was logged
// between two writes: a header (magic number, size of the payload, number of
// the frame, checksums of payload and header; 32 bytes, little-endian) and a
// payload of entries. Frames are independent, so damage to one does not lose
// another, and a reader finds the next one by its header.

inline constexpr std::size_t kJournalHeaderBytes = 32;
/// The largest payload of a frame. An entry that needs more cannot be logged.
inline constexpr std::size_t kMostJournalFrameBytes = std::size_t{256} << 20U;

struct JournalHeader {
  std::uint32_t num_bytes = 0;  ///< of the payload
  std::uint64_t sequence = 0;
  std::uint64_t checksum = 0;  ///< of the payload

  /// Returns nothing if the bytes do not begin with a valid header of a frame of
  /// at most kMostJournalFrameBytes.
  static std::optional<JournalHeader> read(std::string_view bytes);
  [[nodiscard]] bool describes(std::string_view payload) const;
};

/// What the bytes at the expected place of a frame begin with.
enum class FrameStart {
  frame,  ///< a valid header, or its beginning if there are no more bytes
  other_version,  ///< the magic number of another version's frames
  none,           ///< something else, or nothing
};
FrameStart frame_start_of(std::string_view bytes);

/// The first position at or after `from` where a valid header begins, or npos.
std::size_t find_journal_header(std::string_view bytes, std::size_t from);

/// Builds frames, entry by entry. A name is written once per frame. Not
/// thread-safe.
class JournalEncoder {
 public:
  JournalEncoder() = default;

  void add(const JournalEntry& entry);
  /// Begins an entry of `num_scalars` figures, which add_scalar() completes.
  void begin_scalars(
      double time,
      std::optional<std::int64_t> step,
      std::size_t num_scalars);
  void add_scalar(std::string_view name, double value);

  /// The size of the payload so far.
  [[nodiscard]] std::size_t num_bytes() const { return payload_.size(); }
  [[nodiscard]] std::size_t num_entries() const { return num_entries_; }
  /// Returns the header and payload of what was added, and begins a new frame.
  [[nodiscard]] std::string take_frame(std::uint64_t sequence);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };

  void begin(char mark, double time, std::optional<std::int64_t> step);
  std::uint64_t id_of(std::string_view name);

  std::string payload_;
  std::string late_;  // the scalars entry being built
  std::size_t num_entries_ = 0;
  std::size_t num_missing_scalars_ = 0;
  std::unordered_map<std::string, std::uint64_t, Hash, std::equal_to<>> ids_;
};

}  // namespace accelerate::detail
