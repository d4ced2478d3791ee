#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace accelerate::detail {

/// The entries of a zip archive stored without compression, as torch.save
/// writes it, including archives beyond 4 GB (zip64).
class ZipReader {
 public:
  /// Borrows `file`. Throws CheckpointError if it is not such an archive: no
  /// end record, or entries that are outside the file, compressed, encrypted,
  /// or of the same name. `name` is used in messages.
  ZipReader(std::span<const std::byte> file, std::string name);

  struct Entry {
    std::span<const std::byte> bytes;
    std::uint32_t crc32 = 0;
  };
  [[nodiscard]] const std::map<std::string, Entry>& entries() const {
    return entries_;
  }
  /// Throws CheckpointError if there is no entry of this name.
  [[nodiscard]] const Entry& at(const std::string& entry) const;
  /// Throws CheckpointError if the contents do not match their checksum.
  void verify(const std::string& entry) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::string name_;
  std::map<std::string, Entry> entries_;
};

/// The checksum of zip, PNG and Ethernet (ISO 3309).
std::uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace accelerate::detail
