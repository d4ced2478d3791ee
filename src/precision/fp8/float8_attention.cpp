#include "precision/fp8/float8_attention.h"

#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rounded(
    const at::Tensor& heads,
    Float8Attention granularity,
    const std::function<void(const at::Tensor& amax)>& agree) {
  const bool is_per_head = granularity == Float8Attention::per_head;
  const at::Tensor matrix = is_per_head
      ? heads.reshape({-1, heads.size(-2) * heads.size(-1)})
      : heads.reshape({-1, heads.size(-1)});
  const DynamicCast cast{
      at::kFloat8_e4m3fn,
      is_per_head ? Float8Granularity::axiswise : Float8Granularity::tensorwise,
      /*power_of_2=*/true};
  std::vector<MatrixDivision> divisions;
  if (agree) divisions.push_back({1, agree});
  return cast_with_others(matrix, cast, 1, divisions)
      .dequantize()
      .view(heads.sizes())
      .to(heads.scalar_type());
}

struct StraightThrough : torch::autograd::Function<StraightThrough> {
  static at::Tensor forward(
      AutogradContext*,
      const at::Tensor& heads,
      Float8Attention granularity,
      const std::function<void(const at::Tensor& amax)>& agree) {
    return rounded(heads, granularity, agree);
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {grads[0], at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor round_to_float8(
    const at::Tensor& heads,
    Float8Attention granularity,
    const std::function<void(const at::Tensor& amax)>& agree) {
  return StraightThrough::apply(heads, granularity, agree);
}

}  // namespace accelerate::detail
