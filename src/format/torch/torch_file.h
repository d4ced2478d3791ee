#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <accelerate/safetensors.h>

#include "format/torch/pickle_reader.h"

namespace accelerate::detail {

/// A tensor in a torch.save file: a view of a storage.
struct TorchTensor {
  safetensors::Dtype dtype = safetensors::Dtype::F32;
  /// Key of its storage in the file: equal keys share memory.
  std::string storage;
  /// The full storage, little-endian, in the file's mapping.
  std::span<const std::byte> bytes;
  /// Counted in elements.
  std::uint64_t offset = 0;
  safetensors::Shape sizes;
  safetensors::Shape strides;
  bool requires_grad = false;

  [[nodiscard]] bool is_contiguous() const;
  /// The elements, one row after another.
  [[nodiscard]] std::vector<std::byte> contiguous() const;
};

/// The dtype that a pickle names, directly or as the dtype of a storage.
/// Nothing for dtypes that safetensors does not have.
std::optional<safetensors::Dtype> torch_dtype_of(const Pickle::Value& value);

/// A torch.save file, in the zip format or the legacy one, read without
/// executing anything.
class TorchFile {
 public:
  /// Throws Error if the file cannot be read, CheckpointError if it is in
  /// another format, incomplete, or of another byte order.
  explicit TorchFile(const std::filesystem::path& path);
  /// Borrows `bytes`. `name` is used in messages.
  TorchFile(std::span<const std::byte> bytes, const std::string& name);
  ~TorchFile();
  TorchFile(const TorchFile&) = delete;
  TorchFile& operator=(const TorchFile&) = delete;

  /// The saved value.
  [[nodiscard]] Pickle::Value root() const;
  /// The tensor or parameter that `value` describes; nothing if it is neither.
  /// Throws CheckpointError if it reaches beyond its storage.
  [[nodiscard]] std::optional<TorchTensor> tensor(
      const Pickle::Value& value) const;
  /// The most bytes that the elements of all tensors may take together: 8 times
  /// the file's size plus 8 MiB. Tensors with different sizes, strides or
  /// offsets in one storage count separately. With strides of 0 and views of
  /// one storage, a small file could otherwise describe any number. tensor()
  /// refuses a single tensor above the limit.
  [[nodiscard]] std::uint64_t most_tensor_bytes() const;
  /// The file's size.
  [[nodiscard]] std::uint64_t num_bytes() const;
  /// The offset in the file at which the tensor's storage begins.
  [[nodiscard]] std::uint64_t place_of(const TorchTensor& tensor) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accelerate::detail
