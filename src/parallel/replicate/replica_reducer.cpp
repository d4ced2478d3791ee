#include "parallel/replicate/replica_reducer.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include <ATen/Functions.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using torch::autograd::Node;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

bool is_same_memory(const at::Tensor& one, const at::Tensor& other) {
  return one.const_data_ptr() == other.const_data_ptr();
}

// All functions of the backward of `loss`.
std::unordered_set<const Node*> functions_of(const at::Tensor& loss) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> left;
  const auto add = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) left.push_back(node);
  };
  add(torch::autograd::impl::gradient_edge(loss).function.get());
  while (!left.empty()) {
    const Node* const node = left.back();
    left.pop_back();
    for (const auto& edge : node->next_edges()) add(edge.function.get());
  }
  return seen;
}

}  // namespace

class ReplicaReducer::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(ReplicaReducer& reducer, std::size_t row)
      : reducer_(reducer), row_(row) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list&) override {
    reducer_.on_gradient(row_);
    return outputs;
  }

 private:
  ReplicaReducer& reducer_;
  std::size_t row_;
};

ReplicaReducer::ReplicaReducer(
    const TrainableRows& rows,
    const Group& group,
    const ReplicateOptions& options,
    BucketMeans means)
    : rows_(rows),
      group_(group),
      options_(options),
      means_(std::move(means)),
      buckets_(rows, group, options),
      state_(rows.tensors.size()),
      is_arranged_(
          !means_.arranges ||
          (options.find_unused_parameters && !options.static_graph)) {
  for (std::size_t row = 0; row < state_.size(); ++row) add_hook(row);
  abandon();
}

ReplicaReducer::~ReplicaReducer() {
  for (const Row& row : state_) row.accumulator->del_post_hook(row.hook);
}

// The accumulator and its hooks live only as long as something holds it.
void ReplicaReducer::add_hook(std::size_t row) {
  auto accumulator =
      torch::autograd::impl::grad_accumulator(rows_.tensors[row]);
  state_[row].hook =
      accumulator->add_post_hook(std::make_unique<Hook>(*this, row));
  state_[row].accumulator = std::move(accumulator);
}

void ReplicaReducer::begin(
    const at::Tensor& loss,
    const std::function<bool(std::size_t row)>& has_gradient) {
  if (!is_arranged_) arrange(loss);
  abandon();
  const std::lock_guard lock(mutex_);
  for (std::size_t row = 0; row < state_.size(); ++row) {
    state_[row].state = State::computed_now;
    state_[row].has_gradient = has_gradient(row);
  }
  if (options_.find_unused_parameters) complete_unused(loss);
}

// Autograd runs the function that was recorded last among those that are ready,
// so a gradient is complete when the first recorded of its functions has run.
void ReplicaReducer::arrange(const at::Tensor& loss) {
  constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
  std::unordered_map<const Node*, std::uint64_t> first_use;
  for (const Row& row : state_) first_use[row.accumulator.get()] = kNever;
  bool is_reached = false;
  for (const Node* const node : functions_of(loss)) {
    for (const auto& edge : node->next_edges()) {
      const auto found = first_use.find(edge.function.get());
      if (found == first_use.end()) continue;
      found->second = std::min(found->second, node->sequence_nr());
      is_reached = true;
    }
  }
  if (!is_reached) return;
  is_arranged_ = true;
  const auto key_of = [&](std::int64_t row) {
    const std::uint64_t use =
        first_use.at(state_[static_cast<std::size_t>(row)].accumulator.get());
    return std::pair(use != kNever, std::pair(use, row));
  };
  std::vector<std::int64_t> order(state_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, std::greater<>(), key_of);
  // Adopts rank 0's order by a sum, since the sender of a broadcast would not
  // wait for ranks that do something else.
  if (group_.rank() != 0) std::ranges::fill(order, 0);
  const at::Tensor agreed = at::tensor(order, at::kLong);
  group_.all_reduce(agreed);
  const auto* const first = agreed.const_data_ptr<std::int64_t>();
  buckets_.arrange({first, first + agreed.numel()});
}

// The ranks reduce all buckets even if the loss of one does not depend on any
// parameter.
void ReplicaReducer::complete_unused(const at::Tensor& loss) {
  was_reached_ = true;
  const std::unordered_set<const Node*> used = functions_of(loss);
  for (std::size_t row = 0; row < state_.size(); ++row) {
    if (!used.contains(state_[row].accumulator.get())) complete(row);
  }
}

std::vector<std::string> ReplicaReducer::missing() const {
  std::vector<std::string> names;
  if (is_step_ || options_.find_unused_parameters || options_.static_graph)
    return names;
  for (std::size_t row = 0; row < state_.size(); ++row) {
    if (state_[row].state != State::complete) names.push_back(rows_.names[row]);
  }
  return names;
}

void ReplicaReducer::begin_last(const std::vector<at::Tensor>& parameters) {
  const std::lock_guard lock(mutex_);
  is_step_ = true;
  for (const at::Tensor& parameter : parameters) {
    const auto found = rows_.numbers.find(parameter.unsafeGetTensorImpl());
    if (found == rows_.numbers.end()) continue;
    State& state = state_[found->second].state;
    if (state == State::computed_later) state = State::computed_now;
  }
}

void ReplicaReducer::end_last() {
  const std::lock_guard lock(mutex_);
  for (std::size_t row = 0; row < state_.size(); ++row) {
    if (state_[row].state == State::computed_now) complete(row);
  }
}

void ReplicaReducer::on_gradient(std::size_t row) {
  const std::lock_guard lock(mutex_);
  Row& own = state_[row];
  if (own.state == State::computed_now && !std::exchange(was_reached_, true))
    complete_never_used();
  if (own.state == State::complete && !is_step_) late_.insert(row);
  if (own.state != State::computed_now) return;
  own.has_gradient = true;
  ++own.num_uses;
  if (options_.static_graph && !is_step_) {
    // The first backward only learns how often each gradient is added to.
    if (uses_.empty() || own.num_uses < uses_[row]) return;
  }
  complete(row);
}

void ReplicaReducer::complete_never_used() {
  if (is_step_) return;
  for (std::size_t row = 0; row < uses_.size(); ++row) {
    if (uses_[row] == 0) complete(row);
  }
}

void ReplicaReducer::complete(std::size_t row) {
  fill(row);
  state_[row].state = State::complete;
  --num_missing_[buckets_.bucket_of(row)];
  while (futures_.size() < num_missing_.size() &&
         num_missing_[futures_.size()] == 0) {
    send(futures_.size());
  }
}

// Copies the row's gradient into its bucket.
void ReplicaReducer::fill(std::size_t row) {
  const at::NoGradGuard no_grad;
  at::Tensor view = buckets_.view_of(row);
  at::Tensor& gradient = rows_.tensors[row].mutable_grad();
  if (!gradient.defined()) {
    view.zero_();
    return;
  }
  if (is_same_memory(gradient, view)) {
    if (means_.scale) view.mul_(*means_.scale);
    return;
  }
  if (means_.scale) {
    at::mul_out(
        view, gradient, at::native::wrapped_scalar_tensor(*means_.scale));
  } else {
    view.copy_(gradient);
  }
  // Frees the gradient's own memory while others are still computed.
  if (options_.gradient_as_bucket_view) gradient = view;
}

void ReplicaReducer::send(std::size_t index) {
  const at::NoGradGuard no_grad;
  if (index == 0) first_sent_ns_ = now_ns();
  c10d::GradBucket message = buckets_.message(index);
  futures_.push_back(means_.reduce(message));
}

void ReplicaReducer::finish() {
  {
    const std::lock_guard lock(mutex_);
    learn_uses();
    for (std::size_t row = 0; row < state_.size(); ++row) {
      if (state_[row].state != State::complete) complete(row);
    }
  }
  const std::int64_t computed_ns = now_ns();
  for (const FutureTensor& future : futures_) future->waitAndThrow();
  if (finds_owners()) find_owners(own_gradients());
  const at::NoGradGuard no_grad;
  for (std::size_t index = 0; index < futures_.size(); ++index) take(index);
  times_ = {
      .hidden_ns = std::max<std::int64_t>(computed_ns - first_sent_ns_, 0),
      .exposed_ns = now_ns() - computed_ns};
  const std::set<std::size_t> late = std::exchange(late_, {});
  abandon();
  require_none_late(late);
}

// Called after the collectives: the other ranks have this model's means, and
// only this one fails.
void ReplicaReducer::require_none_late(
    const std::set<std::size_t>& late) const {
  if (late.empty()) return;
  std::vector<std::string> names;
  for (const std::size_t row : late) names.push_back(rows_.names[row]);
  throw ConfigError(format(
      "[parallel] gradients of \"{}\" came after those parameters' gradients "
      "had been averaged, so ranks would differ; {}",
      join(names, "\", \""),
      options_.static_graph
          ? "with static_graph, a rank must use them as often in every "
            "backward as in the first: leave it unset if the model changes"
          : "set ReplicateOptions::static_graph if the backward passes through "
            "them several times in each step"));
}

void ReplicaReducer::learn_uses() {
  if (!options_.static_graph || is_step_ || !uses_.empty()) return;
  for (const Row& row : state_) uses_.push_back(row.num_uses);
}

// A static graph has the same owners in every backward.
bool ReplicaReducer::finds_owners() const {
  return is_step_ || options_.find_unused_parameters ||
      (options_.static_graph && num_owners_.empty());
}

std::vector<std::int64_t> ReplicaReducer::own_gradients() const {
  std::vector<std::int64_t> own;
  for (std::size_t row = 0; row < state_.size(); ++row) {
    const bool has_gradient = is_step_ ? rows_.tensors[row].grad().defined()
                                       : state_[row].has_gradient;
    own.push_back(has_gradient ? 1 : 0);
  }
  return own;
}

void ReplicaReducer::find_owners(const std::vector<std::int64_t>& own) {
  const at::Tensor sums = at::tensor(own, at::kLong);
  group_.all_reduce(sums);
  const auto* const first = sums.const_data_ptr<std::int64_t>();
  num_owners_.assign(first, first + sums.numel());
}

void ReplicaReducer::take(std::size_t index) {
  const GradientBuckets::Bucket& bucket = buckets_.all()[index];
  const at::Tensor mean =
      c10d::detail::parseCppCommHookResult(futures_[index]->value());
  if (!is_same_memory(mean, bucket.buffer)) bucket.buffer.copy_(mean.view(-1));
  const bool has_owners =
      is_step_ || options_.find_unused_parameters || options_.static_graph;
  for (const std::size_t row : bucket.rows) {
    if (has_owners && num_owners_[row] == 0) continue;
    const at::Tensor& view = buckets_.view_of(row);
    at::Tensor& gradient = rows_.tensors[row].mutable_grad();
    if (options_.gradient_as_bucket_view) {
      gradient = view;
    } else if (gradient.defined()) {
      gradient.copy_(view);
    } else {
      gradient = view.clone();
    }
  }
}

void ReplicaReducer::abandon() {
  const std::lock_guard lock(mutex_);
  is_step_ = false;
  was_reached_ = false;
  late_.clear();
  for (Row& row : state_) {
    row.state = State::computed_later;
    row.has_gradient = false;
    row.num_uses = 0;
  }
  futures_.clear();
  num_missing_.clear();
  for (const GradientBuckets::Bucket& bucket : buckets_.all())
    num_missing_.push_back(bucket.rows.size());
}

void ReplicaReducer::finish_without_gradients() {
  if (!finds_owners()) return;
  find_owners(std::vector<std::int64_t>(state_.size(), 0));
}

}  // namespace accelerate::detail
