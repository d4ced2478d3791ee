#include "parallel/replicate/replicate.h"

#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/collectives/group_impl.h"
#include "parallel/replicate/average_gradients.h"
#include "parallel/replicate/bucket_reducer.h"
#include "parallel/replicate/gradient_reduction.h"
#include "parallel/replicate/pending_gradients.h"
#include "parallel/replicate/same_model.h"
#include "parallel/replicate/step_reducer.h"

namespace accelerate::detail {

namespace {

class Replicate final : public Strategy,
                        public JoinParticipant,
                        public StrategyState {
 public:
  Replicate(const Mesh& mesh, const ReplicateOptions& options)
      : mesh_(mesh), group_(mesh.gradient_group()), options_(options) {}

  [[nodiscard]] JoinParticipant* join_participant() override { return this; }
  [[nodiscard]] StrategyState* state() override {
    return reduction_ && reduction_->has_state() ? this : nullptr;
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    for (const auto& buffer : module.buffers()) {
      if (buffer.defined() && !table.leaves_out(buffer))
        buffers_.push_back(buffer);
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

  void before_backward(bool sync_gradients, const at::Tensor& loss) override {
    if (!reducer_) return;
    if (!sync_gradients) return pending_.begin_backward(rows_.tensors);
    // The step's gradients are on their way.
    if (has_begun_step()) return;
    if (options_.static_graph) reducer_->restore_uses();
    // prepare_for_forward() counts iterations: called once per reduction,
    // however many forwards lead to it.
    reducer_->prepare_for_forward();
    reducer_->keep_times(listener() != nullptr);
    // Unused parameters are those that the loss does not depend on.
    reducer_->prepare_for_backward({loss});
    if (!options_.find_unused_parameters) return;
    for (std::size_t i = 0; i < rows_.tensors.size(); ++i) {
      if (pending_.contains(i)) reducer_->mark_used(i);
    }
  }

  void after_backward(bool sync_gradients) override {
    if (!reducer_) return;
    if (!sync_gradients) {
      if (has_begun_step()) step_reducer_->end_last();
      return pending_.end_backward(rows_.tensors);
    }
    if (has_begun_step()) return end_step();
    const bool is_first = std::exchange(is_first_reduction_, false);
    if (reducer_->was_reached(is_first)) {
      end_reduction(is_first);
      report_overlap(reducer_->times());
    } else {
      pass_by(is_first);
    }
    pending_.clear();
    // In a join, ranks without data cannot know whether there was a forward.
    const bool sends_buffers =
        round_ != nullptr ? was_announced_ : had_forward_;
    had_forward_ = was_announced_ = false;
    if (sends_buffers) send_buffers();
  }

  // The optimizer has used what gradients there were.
  void after_step() override { pending_.clear(); }

  void before_last_gradients(
      const std::vector<at::Tensor>& parameters) override {
    if (!reducer_) return;
    if (!step_reducer_) {
      step_reducer_ = std::make_unique<StepReducer>(
          rows_, group_, options_, [this](c10d::GradBucket& bucket) {
            return reduce(bucket);
          });
    }
    step_reducer_->begin_last(parameters);
  }

  void on_failure(const std::exception& error) override {
    if (step_reducer_) step_reducer_->abandon();
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
    was_announced_ = false;
    if (reducer_) connect(round.group());
  }

  void shadow(const JoinEvent& event) override {
    switch (event.kind) {
      case JoinEvent::Kind::bucket:
        return shadow_bucket(event.bucket);
      case JoinEvent::Kind::pending_gradients:
        shadow_pending_gradients();
        return send_buffers();
      case JoinEvent::Kind::end_of_backward:
        reducer_->push_rebuilt_params_for_all_indices();
        rebuild_buckets();
        return send_buffers();
    }
  }

  void end_join() override {
    round_ = nullptr;
    empty_buckets_.clear();
    if (reducer_) connect(group_);
  }

 private:
  // Null while nobody profiles.
  [[nodiscard]] StepListener* listener() const {
    return group().impl()->world->steps->get();
  }

  void report_overlap(const ReductionTimes& times) const {
    StepListener* const to = listener();
    if (to == nullptr) return;
    to->overlapped(times.hidden_ns, times.exposed_ns);
  }

  [[nodiscard]] bool has_begun_step() const {
    return step_reducer_ && step_reducer_->has_begun();
  }

  // Ends a step of several backwards.
  void end_step() {
    guard(
        "averaging the gradients of a step", [&] { step_reducer_->finish(); });
    report_overlap(step_reducer_->times());
    pending_.clear();
    if (std::exchange(had_forward_, false)) send_buffers();
  }

  // Ends the reduction of a backward that reached the model.
  void end_reduction(bool is_first) {
    if (options_.static_graph && is_first) {
      // The first backward only learns which parameters are used.
      reducer_->delay_all_reduce();
      reducer_->remember_uses();
    }
    announce(JoinEvent::Kind::end_of_backward);
    try {
      // Fails if this backward reached some parameters and not others.
      rebuild_buckets();
    } catch (const c10::DistError&) {
      throw;
    } catch (const c10::Error& error) {
      explain_unused(error);
    }
    reducer_->ignore_gradients();
  }

  void rebuild_buckets() {
    if (reducer_->rebuild_buckets())
      reducer_->share_buckets(*group().impl()->connection);
  }

  // Ends a backward that did not reach the model. Earlier micro-steps of the
  // window may have left gradients; whether they did on any rank, the ranks
  // agree on.
  void pass_by(bool is_first) {
    is_first_reduction_ = is_first;
    // The reducer still expects gradients.
    reducer_->ignore_gradients();
    if (!pending_.had_backward()) return;
    announce(JoinEvent::Kind::pending_gradients);
    average_pending(rows_.tensors, pending_.any());
  }

  void average_pending(
      const std::vector<at::Tensor>& parameters,
      bool has_gradients) {
    guard("averaging the gradients of earlier micro-steps", [&] {
      const at::Tensor any = at::full({}, has_gradients ? 1 : 0, at::kLong);
      group().all_reduce(any, ReduceOp::max);
      if (any.item<std::int64_t>() == 0) return;
      average_gradients(
          group(),
          parameters,
          {.divisor = divisor(), .message_bytes = options_.bucket_bytes});
    });
  }

  // Tells ranks without data, if there may be any.
  void announce(JoinEvent::Kind kind, int bucket = 0) {
    if (round_ == nullptr) return;
    was_announced_ = true;
    round_->announce(JoinEvent{kind, join_index_, bucket});
  }

  [[nodiscard]] double divisor() const {
    return round_ != nullptr ? round_->divisor() : group_.size();
  }

  [[nodiscard]] bool has_hook() const {
    return options_.comm_hook != CommHook::none ||
        options_.bucket_hook != nullptr;
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
    guard("making buckets of gradients", [&] {
      reducer_ = make_reducer(rows_, group, options_);
    });
    is_first_reduction_ = true;
    if (round_ != nullptr || has_hook()) {
      reducer_->register_comm_hook(std::make_unique<CommHookFunction>(
          [this](c10d::GradBucket& bucket) { return reduce(bucket); }));
    }
    reducer_->ignore_gradients();
  }

  FutureTensor reduce(c10d::GradBucket& bucket) {
    announce(JoinEvent::Kind::bucket, static_cast<int>(bucket.getIndex()));
    return reduction_->reduce(bucket, {process_group(), divisor()});
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
          reduction_->reduce(bucket, {process_group(), divisor()}));
      if (!bucket.isLast()) return;
      for (const FutureTensor& future : futures_) future->waitAndThrow();
      if (!options_.find_unused_parameters) return;
      // The other ranks now reduce which parameters were used.
      std::vector<at::Tensor> none_used{
          at::zeros_like(reducer_->get_local_used_map_on_device())};
      process_group()->allreduce(none_used)->wait();
    });
  }

  void shadow_pending_gradients() {
    // Stand-ins without gradients contribute nothing, and keep the result from
    // this rank's parameters.
    std::vector<at::Tensor> stand_ins;
    for (const at::Tensor& parameter : rows_.tensors)
      stand_ins.push_back(parameter.detach());
    average_pending(stand_ins, /*has_gradients=*/false);
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
    const StepPartScope part(
        group().impl()->world->steps.get(), StepPart::communication);
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
        names_without_gradient(error.what_without_backtrace(), rows_);
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
  std::shared_ptr<BucketReducer> reducer_;
  TrainableRows rows_;
  std::unique_ptr<GradientReduction> reduction_;
  /// Made by the first pipeline's step.
  std::unique_ptr<StepReducer> step_reducer_;
  std::vector<at::Tensor> buffers_;
  PendingGradients pending_;
  bool had_forward_ = false;
  bool is_first_reduction_ = true;

  // Inside join_uneven_inputs only.
  JoinRound* round_ = nullptr;
  int join_index_ = 0;
  /// True if ranks without data take part in this backward.
  bool was_announced_ = false;
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
