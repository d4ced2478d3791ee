#include <algorithm>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <accelerate/error.h>

#include "big_model/quantize/quantized_weight.h"

namespace accelerate::detail {

namespace {

template <class Function>
void with_float_type(c10::ScalarType dtype, Function&& function) {
  if (dtype == c10::ScalarType::Float) return function(float{});
  if (dtype == c10::ScalarType::Half) return function(c10::Half{});
  if (dtype == c10::ScalarType::BFloat16) return function(c10::BFloat16{});
  throw InternalError(
      "[big_model] a quantised weight cannot be converted to such a dtype");
}

}  // namespace

void copy_to_floats(
    const at::Tensor& tensor,
    std::int64_t begin,
    std::span<float> out) {
  with_float_type(tensor.scalar_type(), [&]<class Value>(Value) {
    const Value* const values = tensor.const_data_ptr<Value>() + begin;
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<float>(values[i]);
  });
}

void copy_from_floats(
    std::span<const float> values,
    const at::Tensor& tensor,
    std::int64_t begin) {
  with_float_type(tensor.scalar_type(), [&]<class Value>(Value) {
    Value* const out = tensor.mutable_data_ptr<Value>() + begin;
    std::ranges::copy(values, out);
  });
}

}  // namespace accelerate::detail
