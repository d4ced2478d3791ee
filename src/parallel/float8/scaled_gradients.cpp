#include "parallel/float8/scaled_gradients.h"

#include <limits>
#include <memory>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "comm/group/group_impl.h"
#include "precision/fp8/float8_matrix.h"

namespace accelerate::detail {

namespace {

constexpr at::ScalarType kGradient = at::kFloat8_e4m3fn;
constexpr float kNone = std::numeric_limits<float>::infinity();

// A NaN scale is sent as 0, since reductions do not reliably keep NaN.
at::Tensor message_of(const at::Tensor& scale) {
  return at::nan_to_num(scale, 0.0);
}

// Returns the mean, as codes, of codes with one common scale; summed in fp32.
at::Tensor mean_of(const std::vector<at::Tensor>& codes) {
  const at::Tensor one = at::ones({}, codes[0].options().dtype(at::kFloat));
  at::Tensor sum;
  for (const at::Tensor& each : codes) {
    at::Tensor values =
        ScaledTensor{each.view(kGradient), one}.restore(at::kFloat);
    sum = sum.defined() ? sum.add_(values) : std::move(values);
  }
  sum.div_(static_cast<double>(codes.size()));
  return cast_scaled(sum, kGradient, one).values.view(at::kByte);
}

}  // namespace

class ScaledGradients::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(ScaledGradients& gradients, std::size_t index)
      : gradients_(gradients), index_(index) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list&) override {
    gradients_.take(index_);
    return outputs;
  }

 private:
  ScaledGradients& gradients_;
  std::size_t index_;
};

ScaledGradients::ScaledGradients(
    std::vector<at::Tensor> parameters,
    Group group,
    std::int64_t message_bytes)
    : group_(std::move(group)), message_bytes_(message_bytes) {
  for (at::Tensor& parameter : parameters) {
    index_of_[parameter.unsafeGetTensorImpl()] = entries_.size();
    entries_.push_back({std::move(parameter)});
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) hook(i);
}

ScaledGradients::~ScaledGradients() {
  for (const auto& unhook : unhook_) unhook();
}

void ScaledGradients::hook(std::size_t index) {
  // The accumulator and its hooks live only as long as something holds it.
  const auto accumulator =
      torch::autograd::impl::grad_accumulator(entries_[index].parameter);
  const auto key =
      accumulator->add_post_hook(std::make_unique<Hook>(*this, index));
  unhook_.emplace_back([accumulator, key] { accumulator->del_post_hook(key); });
}

void ScaledGradients::take(std::size_t index) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[index];
  at::Tensor& gradient = entry.parameter.mutable_grad();
  if (!gradient.defined()) return;
  const at::Tensor total = entry.gradient.defined()
      ? entry.gradient.restore(at::kFloat).add_(gradient)
      : gradient.detach();
  entry.gradient = cast_scaled(total, kGradient);
  gradient.reset();
}

at::Tensor ScaledGradients::agree_on_scales() const {
  std::vector<at::Tensor> scales;
  for (const Entry& entry : entries_) {
    scales.push_back(
        entry.gradient.defined()
            ? message_of(entry.gradient.scale)
            : at::full({}, kNone, entry.parameter.options().dtype(at::kFloat)));
  }
  at::Tensor all = at::stack(scales);
  group_.all_reduce(all, ReduceOp::min);
  return all;
}

void ScaledGradients::average() {
  if (group_.size() == 1 || entries_.empty()) return;
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  const at::Tensor scales = agree_on_scales();
  // On the host: sizes of messages depend on them. This is the only point where
  // a step waits for the device.
  const at::Tensor on_host = scales.cpu();
  require_intact(group_, "all_reduce");
  const float* const smallest = on_host.const_data_ptr<float>();
  Message message;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (smallest[i] == kNone) continue;
    const at::Tensor scale = smallest[i] == 0
        ? at::full_like(
              scales[static_cast<std::int64_t>(i)],
              std::numeric_limits<float>::quiet_NaN())
        : scales[static_cast<std::int64_t>(i)].clone();
    entry.gradient = entry.gradient.defined()
        ? cast_scaled(entry.gradient.restore(at::kFloat), kGradient, scale)
        : ScaledTensor{
              at::zeros(
                  entry.parameter.sizes(),
                  entry.parameter.options().dtype(at::kByte))
                  .view(kGradient),
              scale};
    message.push_back(&entry);
    bytes += entry.parameter.numel();
    if (bytes < message_bytes_) continue;
    average(message);
    message.clear();
    bytes = 0;
  }
  if (!message.empty()) average(message);
}

void ScaledGradients::average(const Message& message) const {
  std::vector<at::Tensor> codes;
  std::int64_t size = 0;
  for (const Entry* const entry : message) {
    codes.push_back(entry->gradient.values.view(at::kByte).reshape(-1));
    size += codes.back().numel();
  }
  const std::int64_t num_ranks = group_.size();
  const std::int64_t padding = (num_ranks - size % num_ranks) % num_ranks;
  if (padding > 0) codes.push_back(at::zeros({padding}, codes[0].options()));
  const std::vector<at::Tensor> mine = at::cat(codes).chunk(num_ranks);
  const at::Tensor mean = mean_of(group_.all_to_all(mine));
  const at::Tensor all = at::cat(group_.all_gather(mean));
  std::int64_t begin = 0;
  for (Entry* const entry : message) {
    const at::Tensor& parameter = entry->parameter;
    entry->gradient.values = all.narrow(0, begin, parameter.numel())
                                 .view(parameter.sizes())
                                 .view(kGradient);
    begin += parameter.numel();
  }
}

void ScaledGradients::restore() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (!entry.gradient.defined()) continue;
    at::Tensor restored = entry.gradient.restore(entry.parameter.scalar_type());
    at::Tensor& gradient = entry.parameter.mutable_grad();
    if (gradient.defined()) {
      gradient.add_(restored);
    } else {
      gradient = std::move(restored);
    }
    entry.gradient = {};
  }
}

void ScaledGradients::drop(const at::Tensor& parameter) {
  const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
  if (found == index_of_.end()) return;
  const std::lock_guard lock(mutex_);
  entries_[found->second].gradient = {};
}

std::int64_t ScaledGradients::nbytes() const {
  const std::lock_guard lock(mutex_);
  std::int64_t bytes = 0;
  for (const Entry& entry : entries_) {
    if (!entry.gradient.defined()) continue;
    bytes += static_cast<std::int64_t>(
        entry.gradient.values.nbytes() + entry.gradient.scale.nbytes());
  }
  return bytes;
}

}  // namespace accelerate::detail
