// Cells of LSTMs and GRUs, which LibTorch leaves to devices.
#include <optional>
#include <tuple>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/library.h>

namespace accelerate::testing {
namespace {

using Bias = std::optional<at::Tensor>;

at::Tensor sum_of(const at::Tensor& gates, const Bias& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

at::Tensor zeros_unless(const Bias& gradient, const at::Tensor& like) {
  return gradient && gradient->defined() ? *gradient : at::zeros_like(like);
}

at::Tensor through_sigmoid(const at::Tensor& value) {
  return value * (1 - value);
}
at::Tensor through_tanh(const at::Tensor& value) { return 1 - value * value; }

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& cell,
    const Bias& input_bias,
    const Bias& hidden_bias) {
  const at::DisableRecordFunctionGuard unobserved;
  const auto gates =
      (sum_of(input_gates, input_bias) + sum_of(hidden_gates, hidden_bias))
          .chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid();
  const at::Tensor value = gates[2].tanh(), out = gates[3].sigmoid();
  const at::Tensor next = forget * cell + in * value;
  return {out * next.tanh(), next, at::cat({in, forget, value, out}, 1)};
}

// Returns the gradients of the gates, the cell and each bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const Bias& grad_hidden,
    const Bias& grad_next,
    const at::Tensor& cell,
    const at::Tensor& next,
    const at::Tensor& workspace,
    bool has_bias) {
  const at::DisableRecordFunctionGuard unobserved;
  const auto gates = workspace.chunk(4, 1);
  const at::Tensor &in = gates[0], &forget = gates[1];
  const at::Tensor &value = gates[2], &out = gates[3];
  const at::Tensor of_hidden = zeros_unless(grad_hidden, next);
  const at::Tensor tanh = next.tanh();
  const at::Tensor of_next =
      of_hidden * out * through_tanh(tanh) + zeros_unless(grad_next, next);
  const at::Tensor of_gates = at::cat(
      {of_next * value * through_sigmoid(in),
       of_next * cell * through_sigmoid(forget),
       of_next * in * through_tanh(value),
       of_hidden * tanh * through_sigmoid(out)},
      1);
  return {
      of_gates, of_next * forget, has_bias ? of_gates.sum(0) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& hidden,
    const Bias& input_bias,
    const Bias& hidden_bias) {
  const at::DisableRecordFunctionGuard unobserved;
  const auto of_input = sum_of(input_gates, input_bias).chunk(3, 1);
  const auto of_hidden = sum_of(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = (of_input[0] + of_hidden[0]).sigmoid();
  const at::Tensor keep = (of_input[1] + of_hidden[1]).sigmoid();
  const at::Tensor value = (of_input[2] + reset * of_hidden[2]).tanh();
  return {
      value + keep * (hidden - value),
      at::cat({reset, keep, value, hidden, of_hidden[2]}, 1)};
}

// Returns the gradients of the gates, the hidden state and the biases.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
gru_cell_backward(
    const at::Tensor& gradient,
    const at::Tensor& workspace,
    bool has_bias) {
  const at::DisableRecordFunctionGuard unobserved;
  const auto saved = workspace.chunk(5, 1);
  const at::Tensor &reset = saved[0], &keep = saved[1], &value = saved[2];
  const at::Tensor &hidden = saved[3], &of_hidden = saved[4];
  const at::Tensor of_value = gradient * (1 - keep) * through_tanh(value);
  const at::Tensor of_keep =
      gradient * (hidden - value) * through_sigmoid(keep);
  const at::Tensor of_reset = of_value * of_hidden * through_sigmoid(reset);
  const at::Tensor input_gates = at::cat({of_reset, of_keep, of_value}, 1);
  const at::Tensor hidden_gates =
      at::cat({of_reset, of_keep, of_value * reset}, 1);
  return {
      input_gates,
      hidden_gates,
      gradient * keep,
      has_bias ? input_gates.sum(0) : at::Tensor(),
      has_bias ? hidden_gates.sum(0) : at::Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace accelerate::testing
