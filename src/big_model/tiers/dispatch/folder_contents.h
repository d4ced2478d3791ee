#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// A weight that is in memory, and may be in an offload folder, too.
struct ValueInMemory {
  /// All names that the folder may have it by.
  std::vector<std::string> names;
  at::Tensor value;
  /// The folder may have it in another dtype, which is not compared.
  bool may_be_converted = false;
};

/// Names of the weights that an offload folder has with other contents, by its
/// checksums. Folders that Python programs wrote have none, and are taken as
/// they are.
std::vector<std::string> other_in(
    const std::filesystem::path& folder,
    const std::vector<ValueInMemory>& values);

}  // namespace accelerate::detail
