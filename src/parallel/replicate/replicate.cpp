#include "parallel/replicate/replicate.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "base/text/text.h"
#include "comm/collectives/group_impl.h"
#include "parallel/replicate/bucket_reducer.h"
#include "parallel/replicate/gradient_averager.h"
#include "parallel/replicate/gradient_reduction.h"
#include "parallel/replicate/same_model.h"

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
    const bool has_state = (shared_ && shared_->reduction().has_state()) ||
        (experts_ && experts_->reduction().has_state());
    return has_state ? this : nullptr;
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    for (const auto& buffer : module.buffers()) {
      if (buffer.defined() && !table.leaves_out(buffer))
        buffers_.push_back(buffer);
    }
    guard_collective(group_, "comparing the models of all ranks", [&] {
      const Group model_group = replica_group(Layout(), mesh_);
      require_same_model(model_group, table, buffers_);
      broadcast_rows(mesh_, rows_by_axes(table));
      broadcast_all(model_group, buffers_);
    });
    shared_ = averager_of(group_, trainable_rows(table, is_shared));
    has_rows_apart_ =
        std::ranges::any_of(table.rows(), &Parameter::is_averaged_apart);
    experts_ = averager_of(
        mesh_.experts().group({Axis::replicate, Axis::shard, Axis::context}),
        trainable_rows(table, is_held_expert));
  }

  void before_forward() override {
    had_forward_ = had_forward_ || at::GradMode::is_enabled();
  }

  void before_backward(bool sync_gradients, const at::Tensor& loss) override {
    for_each([&](GradientAverager& averager) {
      averager.before_backward(sync_gradients, loss);
    });
  }

  void after_backward(bool sync_gradients) override {
    for_each([&](GradientAverager& averager) {
      averager.after_backward(sync_gradients);
    });
    if (!sync_gradients || (!shared_ && !has_rows_apart_)) return;
    // In a join, ranks without data cannot know whether there was a forward.
    const bool was_announced = shared_ && shared_->take_announced();
    const bool sends_buffers = round_ != nullptr ? was_announced : had_forward_;
    had_forward_ = false;
    if (sends_buffers) send_buffers();
  }

  void after_step() override {
    for_each([](GradientAverager& averager) { averager.after_step(); });
  }

  void before_last_gradients(
      const std::vector<at::Tensor>& parameters) override {
    for_each([&](GradientAverager& averager) {
      averager.before_last_gradients(parameters);
    });
  }

  void on_failure(const std::exception& error) override {
    for_each([](GradientAverager& averager) { averager.abandon(); });
    if (!is_communication_failure(*group().impl(), error)) return;
    fail_collective(
        *group().impl(),
        "averaging gradients",
        ++group().impl()->sequence,
        error);
  }

  // Averages one gradient at a time; buckets would keep them all.
  void average_gradient(const at::Tensor& gradient) override {
    average(gradient, group_);
  }

  void step_locally(bool is_local) override {
    const Group& wanted =
        is_local ? mesh_.group(Axis::context) : mesh_.gradient_group();
    // With replicas only, no backward syncs in the meantime; with divided
    // sequences only, the ranks that share samples are those that average
    // gradients.
    if (mesh_.degree(Axis::context) == 1 || wanted.size() == group_.size())
      return;
    group_ = wanted;
    if (shared_) shared_->average_among(group_);
  }

  void average_parameters(const ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    // Ranks that share sequences have the same parameters.
    const Group& replicas = mesh_.group(Axis::replicate);
    if (replicas.size() == 1) return;
    for (const Parameter& row : table.rows()) {
      const at::Tensor mean = row.local.detach();
      average(mean, replicas);
      if (!row.local.is_same(row.tensor)) row.tensor.detach().copy_(mean);
    }
  }

  [[nodiscard]] StateDict state_dict() const override {
    StateDict state;
    if (shared_) state = shared_->reduction().state_dict();
    if (experts_) state.set("experts", experts_->reduction().state_dict());
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    if (shared_) shared_->reduction().load_state_dict(state);
    if (experts_ && state.contains("experts"))
      experts_->reduction().load_state_dict(state.get<StateDict>("experts"));
  }

  // Models with divided experts cannot be joined (Experts), so these concern
  // only parameters that all ranks share.
  void begin_join(JoinRound& round, int model) override {
    round_ = &round;
    if (shared_) shared_->begin_join(round, model);
  }

  void shadow(const JoinEvent& event) override {
    shared_->shadow(event);
    if (event.kind != JoinEvent::Kind::bucket) send_buffers();
  }

  void end_join() override {
    round_ = nullptr;
    if (shared_) shared_->end_join();
  }

 private:
  static bool is_shared(const Parameter& row) {
    return !row.layout.is_split_over(Axis::expert) && !row.is_averaged_apart;
  }
  // Experts of other ranks are empty here.
  static bool is_held_expert(const Parameter& row) {
    return row.layout.is_split_over(Axis::expert) && row.tensor.numel() > 0;
  }

  [[nodiscard]] std::unique_ptr<GradientAverager> averager_of(
      const Group& group,
      TrainableRows rows) const {
    if (group.size() == 1 || rows.tensors.empty()) return nullptr;
    return std::make_unique<GradientAverager>(group, std::move(rows), options_);
  }

  template <class Visit>
  void for_each(Visit&& visit) const {
    if (shared_) visit(*shared_);
    if (experts_) visit(*experts_);
  }

  static void average(const at::Tensor& tensor, const Group& group) {
    group.all_reduce(tensor);
    tensor.div_(group.size());
  }

  [[nodiscard]] const Group& group() const {
    return round_ != nullptr ? round_->group() : group_;
  }

  void send_buffers() {
    if (!options_.broadcast_buffers || buffers_.empty()) return;
    const at::NoGradGuard no_grad;
    guard_collective(group(), "sending buffers to all ranks", [&] {
      broadcast_all(
          group(), buffers_, round_ != nullptr ? round_->first_active() : 0);
    });
  }

  Mesh mesh_;
  /// The ranks that average gradients.
  Group group_;
  ReplicateOptions options_;
  /// Averages parameters that all ranks share; null if none is trained.
  std::unique_ptr<GradientAverager> shared_;
  /// Averages experts that this rank holds; null if none is trained or no other
  /// rank holds them.
  std::unique_ptr<GradientAverager> experts_;
  /// True if another strategy averages some parameters.
  bool has_rows_apart_ = false;
  std::vector<at::Tensor> buffers_;
  bool had_forward_ = false;
  /// Inside join_uneven_inputs only.
  JoinRound* round_ = nullptr;
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
