#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace accelerate::detail {

class FileSystem;

/// The file below a JournalWriter, so that tests can make it fail. Functions
/// return 0 or an error number. Used by one thread at a time.
class JournalFile {
 public:
  JournalFile() = default;
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;
  virtual ~JournalFile() = default;

  /// Writes all bytes from `offset` on.
  virtual int write_at(std::uint64_t offset, std::string_view bytes) = 0;
  /// Makes what was written durable.
  virtual int sync() = 0;
  virtual int truncate(std::uint64_t size) = 0;
};

/// Opens the file of a journal, creating it and missing directories, and locks
/// it for as long as it is open. Its first sync() also makes durable what
/// `disk` created. Throws Error if it cannot be opened or another process is
/// writing it.
std::unique_ptr<JournalFile> open_journal_file(
    const std::filesystem::path& path,
    std::shared_ptr<FileSystem> disk);

}  // namespace accelerate::detail
