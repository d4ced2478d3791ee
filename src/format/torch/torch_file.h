#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "format/torch/pickle_reader.h"
#include "format/torch/torch_tensor.h"

namespace accelerate::detail {

/// Whether the bytes begin as a torch.save file does, in the zip format or the
/// legacy one.
bool is_torch_file(std::span<const std::byte> bytes);

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
  /// The tensor, parameter or buffer that `value` describes; nothing if it is
  /// none. Throws CheckpointError if it reaches beyond its storage, or is not
  /// dense. `name` is used in messages.
  [[nodiscard]] std::optional<TorchTensor> tensor(
      const Pickle::Value& value,
      std::string_view name = {}) const;
  /// Whether the file is an archive that has this entry in its directory.
  [[nodiscard]] bool has_entry(const std::string& entry) const;
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
