#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// A weight in memory that may also be in an offload folder.
struct ValueInMemory {
  /// All names under which the folder may store the weight.
  std::vector<std::string> names;
  at::Tensor value;
  /// The folder may store another dtype; if so, values are not compared.
  bool may_be_converted = false;
};

/// Names of the weights whose contents differ in an offload folder, by its
/// checksums. Folders written by Python programs have no checksums and are
/// trusted.
std::vector<std::string> other_in(
    const std::filesystem::path& folder,
    const std::vector<ValueInMemory>& values);

}  // namespace accelerate::detail
