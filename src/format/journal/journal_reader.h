#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "format/journal/journal_decoder.h"
#include "format/journal/journal_entry.h"

namespace accelerate::detail {

/// Reads a journal, also while another process writes it.
class JournalReader {
 public:
  /// Throws Error if the file cannot be opened, or is not a regular file.
  explicit JournalReader(std::filesystem::path path);
  JournalReader(const JournalReader&) = delete;
  JournalReader& operator=(const JournalReader&) = delete;
  ~JournalReader();

  /// Receives the entries of a frame, and the file offset of its payload.
  using TakeFrame = std::function<void(JournalDecoder&, std::uint64_t offset)>;

  /// Passes `take` the frames that have become complete since the last call, in
  /// the order in which they were written, holding one at a time in memory.
  /// Damaged frames are skipped; see num_damaged_bytes(). Stops after about
  /// `most_bytes`, and returns whether that was before the end of the file.
  /// Throws Error if the file cannot be read, or has so many headers without
  /// frames that checking them would take more than time in proportion to its
  /// size. An exception from `take` ends the call; the next call begins with the
  /// following frame.
  bool read(
      const TakeFrame& take,
      std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max());
  /// The entries of those frames.
  std::vector<JournalEntry> read();
  /// Reads bytes of the file; fewer if it ends earlier. Throws Error if it
  /// cannot be read.
  [[nodiscard]] std::string read_bytes(
      std::uint64_t offset,
      std::size_t num_bytes) const;

  /// The size of the file, in bytes.
  [[nodiscard]] std::uint64_t size() const;
  /// The offset at which the last valid frame that was read ends.
  [[nodiscard]] std::uint64_t end_of_frames() const { return end_; }
  /// The number that the next frame will have.
  [[nodiscard]] std::uint64_t next_sequence() const { return next_sequence_; }
  /// Bytes between valid frames. Bytes after the last one may belong to a write
  /// in progress and are not counted.
  [[nodiscard]] std::uint64_t num_damaged_bytes() const {
    return num_damaged_bytes_;
  }

 private:
  // The size of the file and the time of its last change, in nanoseconds.
  struct State {
    std::uint64_t size = 0;
    std::int64_t changed = 0;

    bool operator==(const State&) const = default;
  };

  [[nodiscard]] State state() const;
  bool fill();
  void take_frames(const TakeFrame& take, bool is_all);
  void count_failure(std::size_t num_bytes);
  void end_at(const State& seen);

  std::filesystem::path path_;
  int file_ = -1;
  std::string bytes_;           // from position_ on, as far as read
  std::uint64_t position_ = 0;  // of what has not been looked at, in the file
  std::size_t num_needed_ = 0;  // bytes of the frame that begins there
  // Where a frame begins that may not be written completely yet.
  std::optional<std::uint64_t> incomplete_;
  std::uint64_t num_failed_bytes_ = 0;  // of payloads, in this call
  State seen_;                          // the file when it was last read
  std::uint64_t end_ = 0;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t num_damaged_bytes_ = 0;
};

}  // namespace accelerate::detail
