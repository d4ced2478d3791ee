#include "parallel/replicate/replicate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"
#include "parallel/replicate/gradient_averager.h"
#include "parallel/replicate/gradient_reduction.h"
#include "parallel/replicate/same_model.h"
#include "parallel/replicate/sparse_gradients.h"
#include "parallel/replicate/trainable_rows.h"

namespace accelerate::detail {

namespace {

class Replicate final : public Strategy,
                        public JoinParticipant,
                        public StrategyState {
 public:
  Replicate(const Mesh& mesh, const ReplicateOptions& options)
      : mesh_(mesh), group_(mesh.gradient_group()), options_(options) {}

  [[nodiscard]] StrategyTraits traits() const override {
    StrategyTraits traits;
    if (sparse_.empty()) return traits;
    traits.join_complaint =
        "[parallel] ranks without data cannot shadow the averaging of sparse "
        "gradients; use even_batches, or embeddings without `sparse`";
    traits.lomo_complaint =
        "[parallel] lomo_backward() averages dense gradients, but an embedding "
        "of a prepared model has sparse ones; use it without `sparse`";
    return traits;
  }
  [[nodiscard]] JoinParticipant* join_participant() override { return this; }
  [[nodiscard]] StrategyState* state() override {
    const bool has_state = (shared_ && shared_->reduction().has_state()) ||
        (experts_ && experts_->reduction().has_state());
    return has_state ? this : nullptr;
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    table_ = &table;
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
    devices_.clear();
    for (const Parameter& row : table.rows())
      devices_.push_back(row.tensor.device());
    if (group_.size() > 1) {
      for (const Parameter* const sparse : sparse_rows(module, table)) {
        if (is_shared(*sparse)) sparse_.add(sparse->tensor);
      }
    }
    for (Parameter& row : table.rows()) {
      if (sparse_.contains(row.tensor)) row.is_averaged_apart = true;
    }
    has_rows_apart_ =
        std::ranges::any_of(table.rows(), &Parameter::is_averaged_apart);
    average_rows(shared_, group_, &is_shared);
    expert_group_ =
        mesh_.experts().group({Axis::replicate, Axis::shard, Axis::context});
    average_rows(experts_, expert_group_, &is_held_expert);
  }

  void before_forward() override {
    had_forward_ = had_forward_ || at::GradMode::is_enabled();
  }

  void before_backward(bool sync_gradients, const at::Tensor& loss) override {
    notice_changes();
    for_each([&](GradientAverager& averager) {
      averager.before_backward(sync_gradients, loss);
    });
  }

  void after_backward(bool sync_gradients) override {
    for_each([&](GradientAverager& averager) {
      averager.after_backward(sync_gradients);
    });
    end_backward(sync_gradients);
  }

  void after_plain_backward(bool sync_gradients) override {
    notice_changes();
    for_each([&](GradientAverager& averager) {
      averager.after_plain_backward(sync_gradients);
    });
    end_backward(sync_gradients);
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
    require_dense_gradients();
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
    // With replicas only, no backward syncs in the meantime; with only divided
    // sequences, the ranks that share samples are those that average gradients.
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

  // Models with divided experts cannot be joined (Experts), so joins concern
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

  using Chosen = bool (*)(const Parameter& row);

  // Makes `averager` average the chosen rows that are trained now; leaves it as
  // it is if there are none.
  void average_rows(
      std::unique_ptr<GradientAverager>& averager,
      const Group& group,
      Chosen is_chosen) const {
    TrainableRows rows = trainable_rows(*table_, is_chosen);
    if (group.size() == 1 || rows.tensors.empty()) return;
    if (averager) {
      averager->average_rows(std::move(rows));
    } else {
      averager =
          std::make_unique<GradientAverager>(group, std::move(rows), options_);
    }
  }

  // Whether `averager` averages the chosen rows as they are now. If all are
  // frozen, it keeps its state and the gradients of earlier micro-steps for the
  // backwards to come, and passes by those that cannot reach it.
  [[nodiscard]] bool is_current(
      const GradientAverager* averager,
      const Group& group,
      Chosen is_chosen) const {
    if (group.size() == 1) return true;
    std::size_t count = 0;
    for (const Parameter& row : table_->rows()) {
      if (!row.tensor.requires_grad() || !is_chosen(row)) continue;
      if (averager == nullptr || count == averager->rows().tensors.size())
        return false;
      const TrainableRows& known = averager->rows();
      if (!row.tensor.is_same(known.tensors[count]) ||
          kind_of(row.tensor) != known.kinds[count]) {
        return false;
      }
      ++count;
    }
    return count == 0 || count == averager->rows().tensors.size();
  }

  // Functions of the program's own can compute sparse gradients as well.
  void require_dense_gradients() const {
    for (const Parameter& row : table_->rows()) {
      const at::Tensor& gradient = row.tensor.grad();
      if (row.is_averaged_apart || !gradient.defined() || !gradient.is_sparse())
        continue;
      throw ConfigError(format(
          "[parallel] a sparse gradient must be that of a torch::nn::Embedding "
          "or EmbeddingBag with `sparse` to be averaged, but is that of "
          "\"{}\"; use one of these layers, or a dense gradient",
          row.name));
    }
  }

  void require_in_place() const {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const Parameter& row = table_->rows()[i];
      const at::IntArrayRef shape(row.layout.global_shape);
      const bool has_shape =
          !row.layout.is_unsharded() || row.tensor.sizes() == shape;
      if (has_shape && row.tensor.device() == devices_[i]) continue;
      throw ConfigError(format(
          "[parallel] parameter \"{}\" had shape {} on {} when it was "
          "prepared, but has {} on {} now, where its gradients would not be "
          "averaged; change it before prepare(), or prepare the model anew",
          row.name,
          shape,
          devices_[i].str(),
          row.tensor.sizes(),
          row.tensor.device().str()));
    }
  }

  // Adapts to parameters that the program has frozen, unfrozen or converted
  // since the last backward. Collective if it has.
  void notice_changes() {
    if (!is_current(experts_.get(), expert_group_, &is_held_expert)) {
      // Ranks that hold other experts see no change.
      require_in_place();
      const at::NoGradGuard no_grad;
      average_rows(experts_, expert_group_, &is_held_expert);
    }
    if (is_current(shared_.get(), group_, &is_shared)) return;
    if (round_ != nullptr) {
      throw ConfigError(
          "[parallel] parameters were frozen, unfrozen or converted inside "
          "join_uneven_inputs(), where ranks that have run out of data cannot "
          "do the same; do it outside");
    }
    require_in_place();
    const at::NoGradGuard no_grad;
    guard_collective(group_, "comparing the models of all ranks", [&] {
      require_same_model(replica_group(Layout(), mesh_), *table_, buffers_);
    });
    average_rows(shared_, group_, &is_shared);
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

  // Ends a backward, whoever ran it.
  void end_backward(bool sync_gradients) {
    if (sync_gradients && !sparse_.empty()) {
      guard_collective(group_, "averaging sparse gradients", [&] {
        sparse_.average(group_);
      });
    }
    if (!sync_gradients || (!shared_ && !has_rows_apart_)) return;
    // In a join, ranks without data cannot know whether there was a forward.
    const bool was_announced = shared_ && shared_->join().take_announced();
    const bool sends_buffers = round_ != nullptr ? was_announced : had_forward_;
    had_forward_ = false;
    if (sends_buffers) send_buffers();
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
  /// The ranks that hold this rank's experts.
  Group expert_group_;
  ReplicateOptions options_;
  const ParameterTable* table_ = nullptr;
  /// Averages parameters that all ranks share; null until one is trained.
  std::unique_ptr<GradientAverager> shared_;
  /// Averages experts that this rank holds; null until one is trained, or if no
  /// other rank holds them.
  std::unique_ptr<GradientAverager> experts_;
  /// Parameters with sparse gradients, which are averaged apart from buckets.
  SparseGradients sparse_;
  /// Where the table's tensors were when the model was prepared.
  std::vector<at::Device> devices_;
  /// True if some parameters are averaged in another way, here or by another
  /// strategy.
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
        "[parallel] bucket_bytes and first_bucket_bytes must be at least 1, "
        "but are {} and {}",
        options.bucket_bytes,
        options.first_bucket_bytes);
  }
  if (options.find_unused_parameters && options.static_graph) {
    return "[parallel] find_unused_parameters and static_graph are both set, "
           "but a static graph finds unused parameters by itself in the first "
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
