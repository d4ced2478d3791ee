#pragma once

#include <filesystem>

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// Describes a tensor as the oracle does for files: with digests, and without
/// values if it has more than 64 elements.
Json describe_tensor(const at::Tensor& tensor);

/// Describes the files in a directory as the oracle does.
Json describe_files(const std::filesystem::path& directory);

}  // namespace accelerate::oracle
