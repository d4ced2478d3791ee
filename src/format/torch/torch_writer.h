#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/files/file_system.h"
#include "format/tensors/tensor_writer.h"

namespace accelerate::detail {

/// A value that Python's torch.load(weights_only=True) understands.
struct TorchValue {
  using List = std::vector<TorchValue>;
  struct Tuple {
    List items;
  };
  /// Entries in order. Keys are strings or integers, one per value.
  struct Dict {
    List keys;
    List values;
    void add(TorchValue key, TorchValue value);
  };
  /// A contiguous tensor. Tensors with equal storages, from 1, share the memory
  /// of the first one; 0 is unshared.
  struct Tensor {
    TensorToWrite contents;
    std::int64_t storage = 0;
  };

  std::variant<
      std::monostate,
      bool,
      std::int64_t,
      double,
      std::string,
      List,
      Tuple,
      Dict,
      Tensor>
      value;
};

inline void TorchValue::Dict::add(TorchValue key, TorchValue item) {
  keys.push_back(std::move(key));
  values.push_back(std::move(item));
}

/// Writes a torch.save file in the zip format, durably, in bounded memory.
/// Throws Error if it cannot be written, ConfigError for a dtype that
/// torch.load does not know.
void write_torch_file(
    FileSystem& disk,
    const std::filesystem::path& path,
    const TorchValue& root);

}  // namespace accelerate::detail
