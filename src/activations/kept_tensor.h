#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

namespace accelerate::detail {

/// A tensor that stays where it is between forward and backward, of which
/// nothing else notices that it was changed in place meanwhile.
class KeptTensor {
 public:
  explicit KeptTensor(const at::Tensor& tensor)
      : tensor_(tensor.variable_data()),
        version_(tensor.unsafeGetTensorImpl()->version_counter()),
        has_version_(!tensor.is_inference()),
        version_when_saved_(has_version_ ? tensor._version() : 0) {}

  /// Throws c10::Error, as autograd does, if the tensor was changed since.
  [[nodiscard]] const at::Tensor& get() const {
    TORCH_CHECK(
        !has_version_ || version_.current_version() == version_when_saved_,
        "one of the variables needed for gradient computation has been "
        "modified by an inplace operation: it was at version ",
        version_when_saved_,
        " when it was saved, and is at ",
        version_.current_version());
    return tensor_;
  }

 private:
  at::Tensor tensor_;
  c10::VariableVersion version_;
  bool has_version_;
  std::uint32_t version_when_saved_;
};

/// Whether the tensor is a parameter, or a view of one.
inline bool is_of_parameter(const at::Tensor& tensor) {
  const auto is_trained = [](const at::TensorBase& each) {
    return each.is_leaf() && each.requires_grad();
  };
  return is_trained(tensor) || (tensor.is_view() && is_trained(tensor._base()));
}

}  // namespace accelerate::detail
