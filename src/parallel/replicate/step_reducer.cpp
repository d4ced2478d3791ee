#include "parallel/replicate/step_reducer.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace accelerate::detail {

namespace {

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace

class StepReducer::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(StepReducer& reducer, std::size_t row) : reducer_(reducer), row_(row) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list&) override {
    reducer_.on_gradient(row_);
    return outputs;
  }

 private:
  StepReducer& reducer_;
  std::size_t row_;
};

StepReducer::StepReducer(
    const TrainableRows& rows,
    const Group& group,
    const ReplicateOptions& options,
    Reduce reduce)
    : rows_(rows),
      group_(group),
      keeps_views_(options.gradient_as_bucket_view),
      reduce_(std::move(reduce)),
      states_(rows.tensors.size(), State::computed_later),
      bucket_of_(rows.tensors.size()) {
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      rows.tensors,
      {static_cast<std::size_t>(options.first_bucket_bytes),
       static_cast<std::size_t>(options.bucket_bytes)});
  // Gradients become complete from the last layer to the first.
  std::reverse(buckets.begin(), buckets.end());
  for (std::vector<std::size_t>& members : buckets) {
    for (const std::size_t row : members) bucket_of_[row] = buckets_.size();
    const std::size_t count = members.size();
    buckets_.push_back({std::move(members), count, {}});
  }
  for (std::size_t row = 0; row < rows.tensors.size(); ++row) hook(row);
}

StepReducer::~StepReducer() {
  for (const auto& unhook : unhook_) unhook();
}

void StepReducer::hook(std::size_t row) {
  const at::Tensor& tensor = rows_.tensors[row];
  row_of_[tensor.unsafeGetTensorImpl()] = row;
  // The accumulator and its hooks live only as long as something holds it.
  const auto accumulator = torch::autograd::impl::grad_accumulator(tensor);
  const auto key =
      accumulator->add_post_hook(std::make_unique<Hook>(*this, row));
  unhook_.push_back([accumulator, key] { accumulator->del_post_hook(key); });
}

void StepReducer::begin_last(const std::vector<at::Tensor>& parameters) {
  const std::lock_guard lock(mutex_);
  has_begun_ = true;
  for (const at::Tensor& parameter : parameters) {
    const auto found = row_of_.find(parameter.unsafeGetTensorImpl());
    if (found == row_of_.end()) continue;
    State& state = states_[found->second];
    if (state == State::computed_later) state = State::computed_now;
  }
}

void StepReducer::end_last() {
  const std::lock_guard lock(mutex_);
  for (std::size_t row = 0; row < states_.size(); ++row) {
    if (states_[row] == State::computed_now) complete(row);
  }
}

void StepReducer::on_gradient(std::size_t row) {
  const std::lock_guard lock(mutex_);
  if (states_[row] == State::computed_now) complete(row);
}

void StepReducer::complete(std::size_t row) {
  states_[row] = State::complete;
  --buckets_[bucket_of_[row]].num_missing;
  while (next_bucket_ < buckets_.size() &&
         buckets_[next_bucket_].num_missing == 0) {
    send(next_bucket_++);
  }
}

void StepReducer::send(std::size_t index) {
  const at::NoGradGuard no_grad;
  if (index == 0) first_sent_ns_ = now_ns();
  Bucket& bucket = buckets_[index];
  std::vector<at::Tensor> flat, parameters;
  std::vector<std::size_t> offsets, lengths;
  std::vector<c10::IntArrayRef> sizes;
  std::size_t begin = 0;
  for (const std::size_t row : bucket.rows) {
    const at::Tensor& parameter = rows_.tensors[row];
    const at::Tensor& gradient = parameter.grad();
    flat.push_back(
        gradient.defined() ? gradient.reshape(-1)
                           : at::zeros(
                                 {parameter.numel()},
                                 parameter.options().requires_grad(false)));
    parameters.push_back(parameter);
    offsets.push_back(begin);
    lengths.push_back(static_cast<std::size_t>(parameter.numel()));
    sizes.push_back(parameter.sizes());
    begin += lengths.back();
  }
  c10d::GradBucket message(
      index,
      buckets_.size(),
      at::cat(flat),
      std::move(offsets),
      std::move(lengths),
      std::move(sizes),
      std::move(parameters),
      std::nullopt);
  bucket.mean = reduce_(message);
}

void StepReducer::finish() {
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t row = 0; row < states_.size(); ++row) {
      if (states_[row] != State::complete) complete(row);
    }
  }
  const std::int64_t computed_ns = now_ns();
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> has_gradient;
  for (const at::Tensor& tensor : rows_.tensors)
    has_gradient.push_back(tensor.grad().defined() ? 1 : 0);
  const at::Tensor owners =
      at::tensor(has_gradient, at::kLong).to(rows_.tensors[0].device());
  group_.all_reduce(owners);
  const at::Tensor num_owners = owners.cpu();
  for (const Bucket& bucket : buckets_)
    take(bucket, num_owners.const_data_ptr<std::int64_t>());
  times_ = {
      .hidden_ns = std::max<std::int64_t>(computed_ns - first_sent_ns_, 0),
      .exposed_ns = now_ns() - computed_ns};
  abandon();
}

void StepReducer::take(const Bucket& bucket, const std::int64_t* num_owners) {
  bucket.mean->waitAndThrow();
  const at::Tensor mean =
      c10d::detail::parseCppCommHookResult(bucket.mean->value()).view(-1);
  std::int64_t begin = 0;
  for (const std::size_t row : bucket.rows) {
    const at::Tensor& parameter = rows_.tensors[row];
    const at::Tensor own =
        mean.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    begin += parameter.numel();
    if (num_owners[row] == 0) continue;
    at::Tensor& gradient = parameter.mutable_grad();
    if (keeps_views_) {
      gradient = own;
    } else if (gradient.defined()) {
      gradient.copy_(own);
    } else {
      gradient = own.clone();
    }
  }
}

void StepReducer::abandon() {
  const std::lock_guard lock(mutex_);
  has_begun_ = false;
  next_bucket_ = 0;
  states_.assign(states_.size(), State::computed_later);
  for (Bucket& bucket : buckets_) {
    bucket.num_missing = bucket.rows.size();
    bucket.mean.reset();
  }
}

}  // namespace accelerate::detail
