#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "gate/gate.h"

namespace accelerate::detail {

/// One of the tensors that a weight is held as: codes, or their scales.
struct CodeTensor {
  /// Continues the name of the layer: "weight", "weight.absmax".
  std::string name;
  at::Tensor tensor;
  /// True for large tensors, which may be offloaded; others stay on the
  /// weight's device.
  bool may_be_offloaded = false;
};

/// A keeper of weights that are held as codes, for code that moves models. It
/// returns itself from GateKeeper::as_coded_keeper().
class CodedWeightKeeper : public GateKeeper {
 public:
  CodedWeightKeeper* as_coded_keeper() final { return this; }

  /// All tensors of weight number `unit`, as files hold them.
  [[nodiscard]] virtual std::vector<CodeTensor> code_tensors(
      std::size_t unit) const = 0;
  /// Moves a weight, whose products are computed there from now on.
  virtual void move(std::size_t unit, c10::Device device) = 0;
  /// The parts of a weight that may be offloaded, in the order of
  /// code_tensors(), as handles that nothing else holds: the caller keeps their
  /// memory from now on. Products with the weight are computed on `device`,
  /// where the other parts are moved.
  virtual std::vector<at::Tensor> take_tensors(
      std::size_t unit,
      c10::Device device) = 0;
};

/// The tensor's keeper, if it keeps the tensor as codes, and the tensor's
/// number there.
struct CodedUnit {
  CodedWeightKeeper* keeper = nullptr;
  std::size_t unit = 0;
};

/// Finds the keeper of a tensor that is held as codes; its `keeper` is null for
/// others.
CodedUnit coded_unit(const at::Tensor& tensor);

}  // namespace accelerate::detail
