#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/state_dict.h>

#include "format/tensors/stored_tensors.h"
#include "format/torch/torch_file.h"

namespace accelerate::detail {

/// A torch.save file that holds a state: an optimizer's, a schedule's or a user
/// object's. All functions throw CheckpointError if the file holds something
/// else.
class PythonState {
 public:
  using Value = Pickle::Value;

  explicit PythonState(std::filesystem::path where);

  [[nodiscard]] Value root() const { return file_.root(); }
  [[nodiscard]] std::optional<TorchTensor> tensor(const Value& value) const {
    return file_.tensor(value);
  }
  /// A copy of the tensor's elements. Throws if all copies together exceed what
  /// may be read from a file of this size.
  [[nodiscard]] at::Tensor load(const TorchTensor& tensor) const;
  [[noreturn]] void fail(std::string_view what) const;

  /// Returns nothing if the key is missing.
  [[nodiscard]] static std::optional<Value> find(
      const Value& dict,
      std::string_view key);
  [[nodiscard]] Value at(const Value& dict, std::string_view key) const;
  /// The value of a number, or of a tensor of one element.
  [[nodiscard]] double number(const Value& value) const;
  [[nodiscard]] std::vector<double> numbers(const Value& value) const;
  /// Converts a dictionary, leaving out entries that are None.
  [[nodiscard]] StateDict dict(const Value& value) const;

 private:
  void add(StateDict& state, const std::string& name, const Value& value) const;
  void add_list(StateDict& state, const std::string& name, const Value& list)
      const;

  std::filesystem::path where_;
  TorchFile file_;
  mutable std::uint64_t bytes_left_;
};

/// Returns the state of the optimizer in a torch.save file, whose parameters
/// are numbered, and adds its tensors to `tensors`. Throws CheckpointError.
StateDict read_python_optimizer(
    const std::filesystem::path& file,
    StoredTensors& tensors);

}  // namespace accelerate::detail
