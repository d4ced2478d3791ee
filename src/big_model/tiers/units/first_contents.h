#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "format/tensors/input_file.h"

namespace accelerate::detail {

/// What a tensor in files without checksums was when it was first read, to be
/// compared once a file is another one. Thread-safe.
class FirstContents {
 public:
  /// Versions of the files that hold a tensor.
  using Versions = std::vector<InputFile::Version>;

  /// Whether a value is what was read first. `before` and `after` are the
  /// versions around the read. `was_written_to`: of the first value, whether
  /// files have other contents than when they were opened.
  [[nodiscard]] bool matches(
      const at::Tensor& value,
      const Versions& before,
      const Versions& after,
      bool was_written_to);

  /// Whether these are the versions with which a value was compared.
  [[nodiscard]] bool was_compared(const Versions& versions) const;

 private:
  mutable std::mutex mutex_;
  std::optional<std::uint64_t> checksum_;
  /// The versions whose contents were compared; none if files changed
  /// meanwhile.
  std::optional<Versions> compared_;
};

}  // namespace accelerate::detail
