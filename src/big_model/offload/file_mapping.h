#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "base/files/mappable_file.h"

namespace accelerate::detail {

/// A file in memory: pages are read when they are first used, and copied when
/// they are first written to, so that the file stays as it is.
class FileMapping : public std::enable_shared_from_this<FileMapping> {
 public:
  /// The file must not be shortened while it is mapped. Throws Error if it
  /// cannot be mapped.
  static std::shared_ptr<FileMapping> open(const std::filesystem::path& file);
  /// A file that others may change or shorten: its pages become copies before
  /// that (MappableFile). Null where the kernel does not announce changes.
  static std::shared_ptr<FileMapping> open_protected(
      const std::filesystem::path& file);
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();

  /// A contiguous tensor from byte `offset` on, which keeps the mapping. The
  /// offset must be a multiple of the element's size. Throws CheckpointError if
  /// the file ends before the tensor.
  [[nodiscard]] at::Tensor tensor(
      std::uint64_t offset,
      c10::ScalarType dtype,
      const std::vector<std::int64_t>& shape);

  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  explicit FileMapping(std::filesystem::path file);
  void map();
  bool map_protected();

  std::filesystem::path file_;
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  /// Set only for a protected file.
  std::optional<MappableFile> mappable_;
  std::unique_ptr<MappedBytes> bytes_;
};

}  // namespace accelerate::detail
