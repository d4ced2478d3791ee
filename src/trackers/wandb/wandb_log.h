#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// The file of a W&B run, run-<id>.wandb: records in the blocks of LevelDB's
/// log format, with W&B's header and zlib's checksum. Records are kept in
/// memory until flush().
class WandbLog {
 public:
  /// Creates a file that must not exist yet. Throws Error naming the path and
  /// the system's reason, as flush() does.
  explicit WandbLog(std::filesystem::path path);
  WandbLog(const WandbLog&) = delete;
  WandbLog& operator=(const WandbLog&) = delete;
  /// Writes pending records, if possible.
  ~WandbLog();

  void append(std::string_view record);
  void flush();

 private:
  void append_fragment(char type, std::string_view fragment);

  std::filesystem::path path_;
  int file_ = -1;
  std::uint64_t size_ = 0;  // including what is pending
  std::string pending_;
};

}  // namespace accelerate::detail
