#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace accelerate::detail {

/// The entries of a zip archive, including archives beyond 4 GB (zip64).
/// torch.save stores all of them without compression; LibTorch compresses the
/// code of modules, which is not read.
class ZipReader {
 public:
  /// Borrows `file`. Throws CheckpointError if it is not such an archive: no
  /// end record, or entries that are outside the file, or of the same name.
  /// `name` is used in messages.
  ZipReader(std::span<const std::byte> file, std::string name);

  struct Entry {
    /// The bytes as stored in the file.
    std::span<const std::byte> bytes;
    std::uint32_t crc32 = 0;
    /// False if compressed or encrypted.
    bool is_stored = true;
  };
  [[nodiscard]] const std::map<std::string, Entry>& entries() const {
    return entries_;
  }
  /// Returns an entry. Throws CheckpointError if there is none of this name, or
  /// if it is compressed or encrypted.
  [[nodiscard]] const Entry& at(const std::string& entry) const;
  /// Throws CheckpointError if the contents do not match their checksum.
  void verify(const std::string& entry) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::string name_;
  std::map<std::string, Entry> entries_;
};

/// The checksum of zip, PNG and Ethernet (ISO 3309), of bytes that follow those
/// whose checksum is `before`.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace accelerate::detail
