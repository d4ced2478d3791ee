#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace accelerate::detail {

/// Whether an operator's argument is one number.
inline bool is_number(const c10::IValue& value) {
  return value.isScalar() || (value.isTensor() && value.toTensor().dim() == 0);
}

inline double number_of(const c10::IValue& value) {
  return value.isScalar() ? value.toScalar().toDouble()
                          : value.toTensor().item<double>();
}

}  // namespace accelerate::detail
