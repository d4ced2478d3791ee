#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "format/tensors/input_file.h"

namespace accelerate::detail {

/// Remembers a checksum of what was first read of a tensor in files without
/// checksums, to check later reads once a file has changed. Thread-safe.
class FirstContents {
 public:
  /// Versions of the files that hold a tensor.
  using Versions = std::vector<InputFile::Version>;

  /// Whether a value equals the one read first. `before` and `after` are the
  /// file versions around the read. `was_written_to`, used for the first value
  /// only, says that a file has changed since it was opened.
  [[nodiscard]] bool matches(
      const at::Tensor& value,
      const Versions& before,
      const Versions& after,
      bool was_written_to);

  /// Whether a value was compared at exactly these versions.
  [[nodiscard]] bool was_compared(const Versions& versions) const;

 private:
  mutable std::mutex mutex_;
  std::optional<std::uint64_t> checksum_;
  /// Versions whose contents were compared; empty if files changed during the
  /// read.
  std::optional<Versions> compared_;
};

}  // namespace accelerate::detail
