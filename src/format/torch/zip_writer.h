#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/files/file_system.h"

namespace accelerate::detail {

/// Writes an archive of stored entries, as torch.save does: contents begin at
/// multiples of 64 bytes, so that they can be mapped.
class ZipWriter {
 public:
  explicit ZipWriter(std::unique_ptr<OutputFile> file);

  /// Begins an entry of `num_bytes` bytes, which must then be written.
  void begin(const std::string& name, std::uint64_t num_bytes);
  void write(Bytes bytes);
  void end();
  void add(const std::string& name, std::string_view contents);
  /// Writes the central directory and makes the file durable.
  void finish();

 private:
  struct Entry {
    std::string name;
    std::uint64_t num_bytes = 0;
    std::uint64_t header = 0;
    std::uint32_t crc32 = 0;
  };
  void put(std::string_view bytes);
  void put_directory_entry(const Entry& entry);

  std::unique_ptr<OutputFile> file_;
  std::uint64_t at_ = 0;
  std::uint64_t left_ = 0;
  std::vector<Entry> entries_;
  /// The header of the current entry, written once its checksum is known.
  std::string header_;
};

}  // namespace accelerate::detail
