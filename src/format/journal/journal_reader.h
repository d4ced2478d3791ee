#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "format/journal/journal_decoder.h"
#include "format/journal/journal_entry.h"

namespace accelerate::detail {

/// Reads a journal, also while another process writes it.
class JournalReader {
 public:
  /// Throws Error if the file cannot be opened.
  explicit JournalReader(std::filesystem::path path);
  JournalReader(const JournalReader&) = delete;
  JournalReader& operator=(const JournalReader&) = delete;
  ~JournalReader();

  /// Receives the entries of a frame, and the file offset of its payload.
  using TakeFrame = std::function<void(JournalDecoder&, std::uint64_t offset)>;

  /// Passes `take` the frames that have become complete since the last call, in
  /// the order in which they were written, holding one at a time in memory.
  /// Damaged frames are skipped; see num_damaged_bytes(). Throws Error if the
  /// file cannot be read. An exception from `take` ends the call; the next call
  /// begins with the following frame.
  void read(const TakeFrame& take);
  /// The entries of those frames.
  std::vector<JournalEntry> read();
  /// Reads bytes of the file; fewer if it ends earlier. Throws Error if it
  /// cannot be read.
  [[nodiscard]] std::string read_bytes(
      std::uint64_t offset,
      std::size_t num_bytes) const;

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
  bool fill();
  void take_frame(std::string_view payload, const TakeFrame& take);

  std::filesystem::path path_;
  int file_ = -1;
  std::string bytes_;         // from offset_ on, as far as read
  std::uint64_t offset_ = 0;  // of what has not been taken, in the file
  std::uint64_t end_ = 0;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t num_damaged_bytes_ = 0;
};

}  // namespace accelerate::detail
