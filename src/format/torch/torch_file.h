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

/// The dtype that a pickle names, itself or as that of a storage. Nothing for
/// those that safetensors does not have.
std::optional<safetensors::Dtype> torch_dtype_of(const Pickle::Value& value);

/// A torch.save file, in the zip format or the one before, read without
/// executing anything.
class TorchFile {
 public:
  /// Throws Error if the file cannot be read, CheckpointError if it is of
  /// another format, incomplete, or of another byte order.
  explicit TorchFile(const std::filesystem::path& path);
  /// Borrows `bytes`. `name` is used in messages.
  TorchFile(std::span<const std::byte> bytes, const std::string& name);
  ~TorchFile();
  TorchFile(const TorchFile&) = delete;
  TorchFile& operator=(const TorchFile&) = delete;

  /// The saved value.
  [[nodiscard]] Pickle::Value root() const;
  /// The tensor, or parameter, that `value` describes; nothing if it is not
  /// one. Throws CheckpointError if it reaches beyond its storage.
  [[nodiscard]] std::optional<TorchTensor> tensor(
      const Pickle::Value& value) const;
  /// The number of bytes that the elements of all tensors may take together,
  /// those of a tensor with other sizes, strides or offset in the same storage
  /// again: 8 times the file's, and 8 MiB. With strides of 0 and with views of
  /// one storage, a small file could describe any number. tensor() refuses a
  /// single tensor of more.
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
