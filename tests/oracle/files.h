#pragma once

#include <filesystem>

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// A tensor as the oracle describes those in files: with digests, and without
/// values above 64 elements.
Json describe_tensor(const at::Tensor& tensor);

/// The files in a directory, each as the oracle describes it.
Json describe_files(const std::filesystem::path& directory);

}  // namespace accelerate::oracle
