#include "kernels/fused/softmax_rows.h"

#include <algorithm>
#include <functional>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "base/text/text.h"
#include "kernels/device/device_kernels.h"

namespace accelerate::detail {

namespace {

// Number of logits that are computed with at a time, so that their copies in
// the dtype of sums stay in a processor's cache.
constexpr std::int64_t kLogitsAtOnce = 1 << 17;

// Calls `function(first, count)` for blocks of rows.
void for_blocks_of_rows(
    const at::Tensor& logits,
    const std::function<void(std::int64_t, std::int64_t)>& function) {
  const std::int64_t rows = logits.size(0);
  const std::int64_t together = std::max<std::int64_t>(
      kLogitsAtOnce / std::max<std::int64_t>(logits.size(1), 1), 1);
  for (std::int64_t row = 0; row < rows; row += together)
    function(row, std::min(together, rows - row));
}

/// Memory for a block of rows in the dtype of sums.
class RowBuffer {
 public:
  // Returns `values` - `from`, where each row has one number.
  at::Tensor difference(const at::Tensor& values, const at::Tensor& from) {
    at::Tensor made = buffer_for(values);
    if (values.scalar_type() == made.scalar_type())
      return at::sub_out(made, values, from.unsqueeze(1));
    return made.copy_(values).sub_(from.unsqueeze(1));
  }

 private:
  at::Tensor buffer_for(const at::Tensor& values) {
    if (!buffer_.defined())
      buffer_ = at::empty(
          values.sizes(), values.options().dtype(dtype_of_sums(values)));
    return buffer_.narrow(0, 0, values.size(0));
  }

  at::Tensor buffer_;
};

const DeviceKernel* kernel_for(const at::Tensor& logits, const char* entry) {
  const char* const value = kernel_value(logits.scalar_type());
  if (value == nullptr || logits.numel() == 0 || !has_plain_memory(logits))
    return nullptr;
  return find_kernel(
      logits.device(), {"cross_entropy", {format("VALUE={}", value)}}, entry);
}

const float* numbers(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

RowSums softmax_by_kernel(
    const DeviceKernel& kernel,
    const at::Tensor& logits,
    const at::Tensor& class_weights,
    bool needs_sum) {
  const std::int64_t rows = logits.size(0);
  const auto options = logits.options().dtype(at::kFloat);
  RowSums sums{
      at::empty({rows}, options),
      at::empty({rows}, options),
      needs_sum ? at::empty({rows}, options) : at::Tensor()};
  kernel.launch(
      num_blocks_for(logits.device(), rows),
      logits.const_data_ptr(),
      rows,
      logits.size(1),
      numbers(class_weights),
      sums.largest.mutable_data_ptr<float>(),
      sums.log_sum.mutable_data_ptr<float>(),
      needs_sum ? sums.sum.mutable_data_ptr<float>() : nullptr);
  return sums;
}

}  // namespace

at::ScalarType dtype_of_sums(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

RowSums softmax_rows(
    const at::Tensor& logits,
    const at::Tensor& class_weights,
    bool needs_sum) {
  if (const auto* kernel = kernel_for(logits, "cross_entropy_forward"))
    return softmax_by_kernel(*kernel, logits, class_weights, needs_sum);
  const auto made = [&] {
    return at::empty(
        {logits.size(0)}, logits.options().dtype(dtype_of_sums(logits)));
  };
  RowSums sums{made(), made(), needs_sum ? made() : at::Tensor()};
  RowBuffer buffer;
  for_blocks_of_rows(logits, [&](std::int64_t first, std::int64_t count) {
    const at::Tensor block = logits.narrow(0, first, count);
    at::Tensor largest = sums.largest.narrow(0, first, count);
    largest.copy_(block.amax(1));
    at::Tensor shifted = buffer.difference(block, largest);
    if (needs_sum) {
      sums.sum.narrow(0, first, count)
          .copy_(
              class_weights.defined() ? shifted.mv(class_weights)
                                      : shifted.sum(1));
    }
    at::Tensor log_sum = sums.log_sum.narrow(0, first, count);
    at::sum_out(log_sum, shifted.exp_(), 1);
  });
  sums.log_sum.log_();
  return sums;
}

namespace {

void write_gradients_by_operators(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& class_weights,
    const at::Tensor& log_sums,
    const GradientFactors& factors,
    const at::Tensor& gradients) {
  RowBuffer buffer;
  for_blocks_of_rows(logits, [&](std::int64_t first, std::int64_t count) {
    const auto rows_of = [&](const at::Tensor& tensor) {
      return tensor.narrow(0, first, count);
    };
    const at::Tensor from = rows_of(log_sums);
    at::Tensor out = rows_of(gradients);
    // The gradient itself serves as memory if it has the dtype of sums.
    at::Tensor made = out.scalar_type() == from.scalar_type()
        ? at::sub_out(out, rows_of(logits), from.unsqueeze(1))
        : buffer.difference(rows_of(logits), from);
    made.exp_().mul_(rows_of(factors.of_softmax).unsqueeze(1));
    if (factors.of_classes.defined()) {
      const at::Tensor smoothed = rows_of(factors.of_classes).unsqueeze(1);
      if (class_weights.defined()) {
        made.addcmul_(smoothed, class_weights, -1);
      } else {
        made.sub_(smoothed);
      }
    }
    made.scatter_add_(
        1,
        rows_of(targets).unsqueeze(1),
        rows_of(factors.of_target).neg().unsqueeze(1));
    if (!made.is_same(out)) out.copy_(made);
  });
  // 0 times infinity.
  const at::Tensor unused = factors.of_softmax.eq(0).nonzero().squeeze(1);
  if (unused.numel() > 0) gradients.index_fill_(0, unused, 0);
}

}  // namespace

void write_gradients(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& class_weights,
    const at::Tensor& log_sums,
    const GradientFactors& factors,
    const at::Tensor& gradients) {
  const auto* const kernel = kernel_for(logits, "cross_entropy_backward");
  if (kernel == nullptr) {
    if (logits.numel() == 0) return;
    return write_gradients_by_operators(
        logits, targets, class_weights, log_sums, factors, gradients);
  }
  kernel->launch(
      num_blocks_for(logits.device(), logits.size(0)),
      logits.const_data_ptr(),
      logits.size(0),
      logits.size(1),
      targets.const_data_ptr<std::int64_t>(),
      numbers(class_weights),
      numbers(log_sums),
      numbers(factors.of_softmax),
      numbers(factors.of_target),
      numbers(factors.of_classes),
      gradients.mutable_data_ptr());
}

}  // namespace accelerate::detail
