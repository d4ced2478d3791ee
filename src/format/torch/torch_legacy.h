#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "format/torch/pickle_reader.h"

namespace accelerate::detail {

/// A file in torch.save's format before zip, which it still writes with
/// _use_new_zipfile_serialization=False: several pickles, then the storages.
struct LegacyTorch {
  std::unique_ptr<Pickle> pickle;
  /// Storages by key.
  std::map<std::string, std::span<const std::byte>> storages;
};

bool is_legacy_torch(std::span<const std::byte> bytes);

/// Throws CheckpointError if it is incomplete, or of another byte order.
LegacyTorch read_legacy_torch(
    std::span<const std::byte> bytes,
    const std::string& name);

}  // namespace accelerate::detail
