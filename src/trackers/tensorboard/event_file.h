#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Options for a new event file, besides its directory.
struct EventFileOptions {
  /// When the run began, in seconds since 1970.
  double begin = 0;
  std::string name_suffix = {};
  /// Voids entries of other files in the directory from this step on.
  std::optional<std::int64_t> purge_step = std::nullopt;
};

/// A file that TensorBoard reads: a sequence of Event messages in TFRecord
/// frames. Events are kept in memory until flush().
class EventFile {
 public:
  /// Creates a file with a unique name, and the directory. Throws Error naming
  /// the path and the system's reason, as all functions do.
  EventFile(
      const std::filesystem::path& directory,
      const EventFileOptions& options);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;
  /// Writes pending events, if possible.
  ~EventFile();

  /// `summary`: a Summary message.
  void add(
      std::string_view summary,
      double wall_time,
      std::optional<std::int64_t> step);
  void flush();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void add_frame(std::string_view event);

  std::filesystem::path path_;
  int file_ = -1;
  std::string pending_;
};

/// CRC-32C (Castagnoli), rotated and offset as in TFRecord files.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace accelerate::detail
