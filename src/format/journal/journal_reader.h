#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

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

  /// The entries that have become complete since the last call, in the order
  /// in which they were written. Frames that are damaged are left out; see
  /// num_damaged_bytes(). Throws Error if the file cannot be read.
  std::vector<JournalEntry> read();

  /// Where the last valid frame that was read ends, in bytes.
  [[nodiscard]] std::uint64_t end_of_frames() const { return end_; }
  /// The number that the next frame gets.
  [[nodiscard]] std::uint64_t next_sequence() const { return next_sequence_; }
  /// Bytes between valid frames. What follows the last one may be about to be
  /// written, and is not counted.
  [[nodiscard]] std::uint64_t num_damaged_bytes() const {
    return num_damaged_bytes_;
  }

 private:
  bool fill();

  std::filesystem::path path_;
  int file_ = -1;
  std::string bytes_;         // from offset_ on
  std::uint64_t offset_ = 0;  // of what has not been taken, in the file
  std::uint64_t end_ = 0;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t num_damaged_bytes_ = 0;
};

}  // namespace accelerate::detail
