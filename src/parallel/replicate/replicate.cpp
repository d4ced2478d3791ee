#include "parallel/replicate/replicate.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/collectives/group_impl.h"
#include "parallel/replicate/gradient_reduction.h"
#include "parallel/replicate/same_model.h"

namespace accelerate::detail {

namespace {

// Gives access to protected state of c10d::Reducer.
class OpenReducer : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;

  [[nodiscard]] bool is_unfinished() const { return require_finalize_; }
  void ignore_gradients() { expect_autograd_hooks_ = false; }

  // With a static graph, the first reduction counts how often each parameter is
  // used. LibTorch also counts uses in backward passes that are not averaged,
  // before and after that one, and then waits for them for ever.
  void restore_uses() {
    for (auto& [index, count] : numGradHooksTriggeredMap_) {
      count = uses_.empty() ? 0 : uses_.at(index);
    }
  }
  void remember_uses() { uses_ = numGradHooksTriggeredMap_; }

 private:
  std::unordered_map<std::size_t, int> uses_;
};

struct TrainableRows {
  std::vector<at::Tensor> tensors;
  std::unordered_map<std::size_t, std::string> names;
  std::unordered_map<const c10::TensorImpl*, std::string> names_by_tensor;
};

TrainableRows trainable_rows(const ParameterTable& table) {
  TrainableRows rows;
  for (const Parameter* row : table.trainable()) {
    rows.names.emplace(rows.tensors.size(), row->name);
    rows.names_by_tensor.emplace(row->tensor.unsafeGetTensorImpl(), row->name);
    rows.tensors.push_back(row->tensor);
  }
  return rows;
}

// LibTorch after 2.11 added arguments with defaults; the twelve of 2.11 are
// enough for all versions.
template <class Reducer = OpenReducer>
std::unique_ptr<Reducer> make_reducer(
    const TrainableRows& rows,
    const c10::intrusive_ptr<c10d::ProcessGroup>& process_group,
    const ReplicateOptions& options) {
  const std::vector<bool> dense(rows.tensors.size(), false);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      rows.tensors,
      {static_cast<std::size_t>(options.first_bucket_bytes),
       static_cast<std::size_t>(options.bucket_bytes)},
      dense);
  // Gradients become ready from the last layer to the first.
  std::reverse(buckets.begin(), buckets.end());
  auto reducer = std::make_unique<Reducer>(
      rows.tensors,
      std::move(buckets),
      process_group,
      dense,
      options.bucket_bytes,
      options.find_unused_parameters,
      options.gradient_as_bucket_view,
      rows.names,
      options.first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false,
      std::vector<std::int64_t>{});
  if (options.static_graph) reducer->set_static_graph();
  return reducer;
}

// LibTorch lists the parameters without gradient by index.
std::vector<std::string> names_in(
    const std::string& message,
    const std::unordered_map<std::size_t, std::string>& names) {
  constexpr std::string_view kMark = "did not receive grad for rank ";
  std::vector<std::string> found;
  std::size_t at = message.find(kMark);
  if (at == std::string::npos) return found;
  at = message.find(':', at);
  while (at != std::string::npos && ++at < message.size()) {
    if (message[at] == ' ') continue;
    std::size_t end = at;
    while (end < message.size() &&
           std::isdigit(static_cast<unsigned char>(message[end])))
      ++end;
    if (end == at) break;
    const auto name = names.find(std::stoul(message.substr(at, end - at)));
    if (name != names.end()) found.push_back(format("\"{}\"", name->second));
    at = end - 1;
  }
  return found;
}

class Replicate final : public Strategy,
                        public JoinParticipant,
                        public StrategyState {
 public:
  Replicate(const Mesh& mesh, const ReplicateOptions& options)
      : mesh_(mesh), group_(mesh.gradient_group()), options_(options) {}

  [[nodiscard]] StrategyTraits traits() const override {
    return {.needs_outputs = needs_outputs()};
  }
  [[nodiscard]] JoinParticipant* join_participant() override { return this; }
  [[nodiscard]] StrategyState* state() override {
    return reduction_ && reduction_->has_state() ? this : nullptr;
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    for (const auto& buffer : module.buffers()) {
      if (buffer.defined()) buffers_.push_back(buffer);
    }
    guard("comparing the models of all ranks", [&] {
      const Group model_group = replica_group(Layout(), mesh_);
      require_same_model(model_group, table, buffers_);
      broadcast_rows(mesh_, rows_by_axes(table));
      broadcast_all(model_group, buffers_);
    });
    rows_ = trainable_rows(table);
    if (rows_.tensors.empty()) return;
    reduction_ = make_reduction(
        options_, [this](const at::Tensor& tensor) -> const std::string& {
          return rows_.names_by_tensor.at(tensor.unsafeGetTensorImpl());
        });
    connect(group_);
  }

  void before_forward() override {
    had_forward_ = had_forward_ || at::GradMode::is_enabled();
  }

  void after_forward(const ForwardOutputs& outputs) override {
    if (!needs_outputs() || !at::GradMode::is_enabled()) return;
    if (!outputs.is_known) {
      throw ConfigError(
          "[parallel] find_unused_parameters must see what the model returns, "
          "but its type is not known; give it a visit_tensors function "
          "(nested.h)");
    }
    if (std::exchange(outputs_are_spent_, false)) outputs_.clear();
    for (const at::Tensor& tensor : outputs.tensors) {
      if (tensor.defined() && tensor.requires_grad())
        outputs_.push_back(tensor);
    }
  }

  void before_backward(bool sync_gradients) override {
    if (!reducer_ || !sync_gradients) return;
    if (options_.static_graph) reducer_->restore_uses();
    // prepare_for_forward() counts iterations: called once per reduction,
    // however many forwards lead to it.
    reducer_->prepare_for_forward();
    reducer_->prepare_for_backward(outputs_);
  }

  void after_backward(bool sync_gradients) override {
    if (!reducer_ || !sync_gradients) return;
    if (options_.static_graph && std::exchange(is_first_reduction_, false)) {
      // The first backward only learns which parameters are used.
      reducer_->delay_all_reduce();
      reducer_->remember_uses();
    }
    if (round_ != nullptr) {
      // If this backward did not reach the model, ranks without data have
      // nothing to shadow.
      if (!std::exchange(was_reduced_, false))
        return reducer_->ignore_gradients();
      round_->announce(
          JoinEvent{JoinEvent::Kind::end_of_backward, join_index_, 0});
    }
    try {
      // Fails if this backward reached some parameters and not others.
      reducer_->rebuild_buckets();
    } catch (const c10::DistError&) {
      throw;
    } catch (const c10::Error& error) {
      explain_unused(error);
    }
    // The reducer still expects gradients if this backward did not reach the
    // model.
    reducer_->ignore_gradients();
    outputs_are_spent_ = true;
    // In a join, ranks without data cannot know whether there was a forward.
    if (std::exchange(had_forward_, false) || round_ != nullptr) send_buffers();
  }

  void on_failure(const std::exception& error) override {
    if (!is_communication_failure(*group().impl(), error)) return;
    fail_collective(
        *group().impl(),
        "averaging gradients",
        ++group().impl()->sequence,
        error);
  }

  // Averages one gradient at a time; buckets would keep them all.
  void average_gradient(const at::Tensor& gradient) override {
    average(gradient);
  }

  void average_parameters(const ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    for (const Parameter& row : table.rows()) {
      const at::Tensor mean = row.local.detach();
      average(mean);
      if (!row.local.is_same(row.tensor)) row.tensor.detach().copy_(mean);
    }
  }

  [[nodiscard]] StateDict state_dict() const override {
    return reduction_->state_dict();
  }
  void load_state_dict(const StateDict& state) override {
    reduction_->load_state_dict(state);
  }

  // A Reducer accepts a hook only before its first backward, so the join gets
  // its own Reducer.
  void begin_join(JoinRound& round, int model) override {
    round_ = &round;
    join_index_ = model;
    was_reduced_ = false;
    if (reducer_) connect(round.group());
  }

  void shadow(const JoinEvent& event) override {
    if (event.kind == JoinEvent::Kind::bucket)
      return shadow_bucket(event.bucket);
    reducer_->push_rebuilt_params_for_all_indices();
    reducer_->rebuild_buckets();
    send_buffers();
  }

  void end_join() override {
    round_ = nullptr;
    empty_buckets_.clear();
    if (reducer_) connect(group_);
  }

 private:
  [[nodiscard]] bool needs_outputs() const {
    return reducer_ != nullptr && options_.find_unused_parameters;
  }

  void average(const at::Tensor& tensor) const {
    group_.all_reduce(tensor);
    tensor.div_(group_.size());
  }

  [[nodiscard]] const Group& group() const {
    return round_ != nullptr ? round_->group() : group_;
  }
  [[nodiscard]] const c10::intrusive_ptr<c10d::ProcessGroup>& process_group()
      const {
    return group().impl()->process_group;
  }

  // From now on, gradients are averaged among the ranks of `group`.
  void connect(const Group& group) {
    reducer_.reset();
    reducer_ = make_reducer(rows_, group.impl()->process_group, options_);
    is_first_reduction_ = true;
    if (round_ != nullptr || options_.comm_hook != CommHook::none) {
      reducer_->register_comm_hook(std::make_unique<CommHookFunction>(
          [this](c10d::GradBucket& bucket) { return reduce(bucket); }));
    }
    reducer_->ignore_gradients();
  }

  FutureTensor reduce(c10d::GradBucket& bucket) {
    if (round_ == nullptr) {
      return reduction_->reduce(
          bucket, {process_group(), static_cast<double>(group_.size())});
    }
    was_reduced_ = true;
    round_->announce(JoinEvent{
        JoinEvent::Kind::bucket,
        join_index_,
        static_cast<int>(bucket.getIndex())});
    return reduction_->reduce(bucket, {process_group(), round_->divisor()});
  }

  void shadow_bucket(int index) {
    const at::NoGradGuard no_grad;
    guard("averaging gradients", [&] {
      if (index == 0) {
        empty_buckets_ =
            reducer_->get_grad_buckets(/*return_zero_tensors=*/true);
        futures_.clear();
      }
      c10d::GradBucket& bucket =
          empty_buckets_.at(static_cast<std::size_t>(index));
      futures_.push_back(
          reduction_->reduce(bucket, {process_group(), round_->divisor()}));
      if (!bucket.isLast()) return;
      for (const FutureTensor& future : futures_) future->waitAndThrow();
      if (!options_.find_unused_parameters) return;
      // The other ranks now reduce which parameters were used.
      std::vector<at::Tensor> none_used{
          at::zeros_like(reducer_->get_local_used_map_on_device())};
      process_group()->allreduce(none_used)->wait();
    });
  }

  void send_buffers() {
    if (!options_.broadcast_buffers || buffers_.empty()) return;
    const at::NoGradGuard no_grad;
    guard("sending buffers to all ranks", [&] {
      broadcast_all(
          group(), buffers_, round_ != nullptr ? round_->first_active() : 0);
    });
  }

  template <class Body>
  void guard(const char* operation, Body&& body) {
    const std::uint64_t sequence = ++group().impl()->sequence;
    try {
      body();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail_collective(*group().impl(), operation, sequence, error);
    }
  }

  [[noreturn]] void explain_unused(const c10::Error& error) {
    if (!reducer_->is_unfinished()) throw;
    const std::vector<std::string> unused =
        names_in(error.what_without_backtrace(), rows_.names);
    throw ConfigError(format(
        "[parallel] the backward pass gave no gradient to {}, so ranks would "
        "wait for each other; use them in the loss, freeze them "
        "(requires_grad_(false)) before prepare(), or set "
        "ReplicateOptions::find_unused_parameters",
        unused.empty() ? std::string("some parameters") : join(unused, ", ")));
  }

  Mesh mesh_;
  Group group_;
  ReplicateOptions options_;
  std::unique_ptr<OpenReducer> reducer_;
  TrainableRows rows_;
  std::unique_ptr<GradientReduction> reduction_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> outputs_;
  bool outputs_are_spent_ = false;
  bool had_forward_ = false;
  bool is_first_reduction_ = true;

  // Inside join_uneven_inputs only.
  JoinRound* round_ = nullptr;
  int join_index_ = 0;
  bool was_reduced_ = false;
  std::vector<c10d::GradBucket> empty_buckets_;
  std::vector<FutureTensor> futures_;
};

}  // namespace

std::optional<std::string> validate_replicate(const ReplicateOptions& options) {
  if (options.bucket_bytes < 1 || options.first_bucket_bytes < 1) {
    return format(
        "[parallel] bucket_bytes is {} and first_bucket_bytes {}; both are at "
        "least 1",
        options.bucket_bytes,
        options.first_bucket_bytes);
  }
  if (options.find_unused_parameters && options.static_graph) {
    return "[parallel] find_unused_parameters and static_graph were both asked "
           "for; a static graph finds unused parameters by itself in the first "
           "step: unset find_unused_parameters";
  }
  return validate_reduction(options);
}

std::unique_ptr<Strategy> make_replicate(
    const Mesh& mesh,
    const ReplicateOptions& options) {
  return std::make_unique<Replicate>(mesh, options);
}

}  // namespace accelerate::detail
