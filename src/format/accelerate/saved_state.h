#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "format/tensors/stored_tensors.h"
#include "format/torch/torch_writer.h"

namespace accelerate::detail {

/// The state in a file of a checkpoint ("state.safetensors", or a rank's): the
/// JSON that docs/reference/checkpoint_format.md describes, and its tensors.
class SavedState {
 public:
  using Json = nlohmann::json;

  /// Throws CheckpointError if the file holds no state, Error if it cannot be
  /// read.
  explicit SavedState(const std::filesystem::path& file);

  /// The entries of the state by key.
  [[nodiscard]] const Json& entries() const { return entries_; }
  /// An entry; null if it is missing.
  [[nodiscard]] const Json* find(std::string_view key) const;

  /// The entries of a nested state. Throws CheckpointError if `value` is not
  /// one.
  [[nodiscard]] const Json& state_in(const Json& value) const;
  /// The list of states in `value`.
  [[nodiscard]] const Json& states_in(const Json& value) const;

  /// Converts a value for torch.save. `what` names it in messages. Throws
  /// ConfigError for a string that Python cannot represent.
  [[nodiscard]] TorchValue value(const Json& value, const std::string& what)
      const;
  /// Converts the entries of a state to a dictionary.
  [[nodiscard]] TorchValue dict(const Json& entries, const std::string& what)
      const;

  [[noreturn]] void fail() const;

 private:
  [[nodiscard]] TorchValue tagged(const Json& value, const std::string& what)
      const;

  std::filesystem::path file_;
  StoredTensors tensors_;
  Json entries_;
};

/// A tensor with one element, as Python's optimizers keep their steps.
TorchValue scalar_tensor(float value);

/// A stored tensor as a value.
TorchValue torch_tensor(const StoredTensor& tensor, std::int64_t storage = 0);

}  // namespace accelerate::detail
