#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "format/exported/exported_archive.h"

namespace accelerate::detail {

/// Tensors by name; tied ones are the same tensor.
using LoadedTensors = std::map<std::string, at::Tensor>;

/// Makes the tensors of an archive. Their memory is the mapped file where the
/// kernel promises to announce changes, otherwise a copy; without `has_values`,
/// and where the archive has none, they are on meta.
class TensorLoader {
 public:
  /// Borrows `archive`, which was read from `path`.
  TensorLoader(
      const ExportedArchive& archive,
      const std::filesystem::path& path);
  ~TensorLoader();

  [[nodiscard]] LoadedTensors load(
      const ExportedTensors& tensors,
      bool has_values);

 private:
  class Files;
  std::unique_ptr<Files> files_;
};

}  // namespace accelerate::detail
