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

  /// Gets the entries of a frame, and where its payload begins in the file.
  using TakeFrame = std::function<void(JournalDecoder&, std::uint64_t offset)>;

  /// Gives `take` the frames that have become complete since the last call, in
  /// the order in which they were written, and holds one at a time in memory.
  /// Frames that are damaged are left out; see num_damaged_bytes(). Throws
  /// Error if the file cannot be read. What `take` throws ends the call; the
  /// next one begins with the frame after that.
  void read(const TakeFrame& take);
  /// The entries of these frames.
  std::vector<JournalEntry> read();
  /// Bytes of the file; fewer if it ends before. Throws Error if it cannot be
  /// read.
  [[nodiscard]] std::string read_bytes(
      std::uint64_t offset,
      std::size_t num_bytes) const;

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
  void take_frame(std::string_view payload, const TakeFrame& take);

  std::filesystem::path path_;
  int file_ = -1;
  std::string bytes_;         // from offset_ on, as far as they are read
  std::uint64_t offset_ = 0;  // of what has not been taken, in the file
  std::uint64_t end_ = 0;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t num_damaged_bytes_ = 0;
};

}  // namespace accelerate::detail
