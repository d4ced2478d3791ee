#include "parallel/shard.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/mesh.h"
#include "parallel/average_gradients.h"
#include "parallel/bind_locals.h"
#include "parallel/first_values.h"
#include "parallel/gradient_messages.h"
#include "parallel/large_blocks.h"
#include "parallel/same_model.h"
#include "parallel/shard_unit.h"
#include "parallel/touch_order.h"
#include "parallel/units.h"

namespace accelerate::detail {

namespace {

// A unit that comes again as one of the next so many stays whole.
constexpr std::size_t kKept = 2;

// Tells when a parameter's gradient of this backward is complete.
class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit GradientHook(std::function<void()> tell) : tell_(std::move(tell)) {}
  void operator()(const at::Tensor&) override { tell_(); }

 private:
  std::function<void()> tell_;
};

// Of one thread, which may handle tensors behind the gate.
struct Turn {
  explicit Turn(std::mutex& mutex) : lock(mutex) {}
  std::lock_guard<std::mutex> lock;
  PassGates passing;
};

class Shard final : public Strategy, public GateKeeper {
 public:
  Shard(const Mesh& mesh, ShardOptions options)
      : mesh_(mesh),
        options_(std::move(options)),
        data_group_(mesh.group({Axis::replicate, Axis::shard})) {
    if (!mesh.world().device().is_cpu())
      pools_.host = std::make_shared<BlockPool>();
  }

  ~Shard() override {
    for (const at::Tensor& parameter : hooked_)
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }

  [[nodiscard]] std::string_view name() const override { return "shard"; }
  [[nodiscard]] bool takes_empty() const override {
    return options_.frees_parameters;
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    const PassGates passing;
    for (const auto& buffer : module.buffers()) {
      if (buffer.defined()) buffers_.push_back(buffer);
    }
    UnitPlan plan = plan_units(module, table, options_.policy);
    require_same_model(data_group_, table, buffers_);
    FirstValues values(mesh_, data_group_, table);
    for (const Parameter* row : plan.whole) values.make_whole(*row);
    values.broadcast(table);
    broadcast_all(data_group_, buffers_);

    const ShardGroups groups{
        mesh_.group(Axis::shard),
        mesh_group(mesh_, Axis::shard, "gradients"),
        neighbours()};
    int num_raised = 0;
    for (const UnitOfRows& rows : plan.units) {
      std::vector<ShardedParameter> split;
      for (Parameter* row : rows.rows) {
        const at::ScalarType stored = row->tensor.scalar_type();
        split.push_back(
            cut(*row, table, values, plan.full_precision.contains(row)));
        row->policy = policy_of(*row, split.back(), rows.name);
        num_raised += row->local.scalar_type() == stored ? 0 : 1;
      }
      const int tags = claim_tags(mesh_, ShardUnit::num_tags(rows.rows.size()));
      units_.push_back(std::make_unique<ShardUnit>(
          rows.name, groups, std::move(split), pools_, tags));
    }
    say_raised(num_raised);
    std::int64_t largest = 0;
    for (const auto& unit : units_)
      largest = std::max(largest, unit->whole_bytes());
    // Else all freed memory of these sizes is kept.
    if (!options_.keeps_large_blocks || !may_keep_large_blocks()) {
      pools_.whole->keep_up_to(largest);
      pools_.host->keep_up_to(largest);
    }
    for (const Parameter* row : plan.whole) whole_.push_back(row->tensor);
    cast_buffers(module, plan.full_precision_modules);
    pending_.resize(units_.size());
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const auto& trainable = units_[u]->trainable();
      for (std::size_t i = 0; i < trainable.size(); ++i) {
        const at::Tensor& whole = units_[u]->parameters()[trainable[i]].whole;
        hooked_.push_back(whole);
        torch::autograd::impl::set_post_acc_grad_hooks(
            whole, std::make_unique<GradientHook>([this, u, i] {
              on_gradient(u, i);
            }));
      }
      if (options_.frees_parameters) units_[u]->release();
    }
    messages_.emplace(units_, !mesh_.world().device().is_cpu());
  }

  void bind(torch::optim::Optimizer& optimizer, const ParameterTable& table)
      override {
    if (bind_locals(optimizer, table)) optimizers_.insert(&optimizer);
  }

  [[nodiscard]] std::optional<at::ScalarType> input_dtype() const override {
    return options_.param_dtype;
  }
  [[nodiscard]] std::optional<at::ScalarType> output_dtype() const override {
    return options_.output_dtype;
  }

  void before_forward() override {
    const Turn turn(mutex_);
    if (num_forwards_++ > 0) return;
    require_unchanged();
    had_forward_ = had_forward_ || at::GradMode::is_enabled();
    order_ = at::GradMode::is_enabled() ? &forward_order_ : &evaluation_order_;
    order_->begin();
    is_open_ = true;
  }

  void after_forward(const ForwardOutputs&) override {
    const Turn turn(mutex_);
    if (--num_forwards_ > 0) return;
    order_->end();
    is_open_ = false;
    if (!options_.frees_parameters) return;
    // What was computed last is what the backward begins with.
    const bool keeps_last = at::GradMode::is_enabled();
    const bool keeps_all = keeps_last && !options_.frees_after_forward;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (is_held_open() || keeps_all || (keeps_last && current_ == u))
        continue;
      units_[u]->finish_gather();
      units_[u]->release();
    }
    if (!keeps_last) current_.reset();
  }

  void before_backward(bool sync_gradients) override {
    const Turn turn(mutex_);
    require_no_scope("backward() was called");
    reduces_ = sync_gradients || options_.reduces_every_backward;
    for (std::size_t u = 0; u < units_.size(); ++u)
      pending_[u] = units_[u]->num_trainable();
    was_reached_ = false;
    messages_->begin();
    order_ = &backward_order_;
    order_->begin();
    is_in_backward_ = true;
    is_open_ = true;
  }

  void after_backward(bool sync_gradients) override {
    const Turn turn(mutex_);
    is_in_backward_ = false;
    is_open_ = false;
    order_->end();
    owes_gradients_ = owes_gradients_ || was_reached_;
    // Also where the window's last backward passed this model by.
    const bool settles = sync_gradients && owes_gradients_;
    if (reduces_ && (was_reached_ || settles)) {
      messages_->end_gradients();
      for (std::size_t u = 0; u < units_.size(); ++u) {
        // Not reached by this backward, or only in part; the other ranks may
        // have reached it.
        if (std::exchange(pending_[u], 0) > 0 || units_[u]->has_gradient())
          messages_->complete(u);
      }
      messages_->finish(/*is_usual=*/was_reached_);
    }
    if (options_.frees_parameters && !is_held_open()) release_all();
    if (!settles) return;
    owes_gradients_ = false;
    average_copies();
    if (std::exchange(had_forward_, false) && options_.broadcast_buffers) {
      const at::NoGradGuard no_grad;
      broadcast_all(data_group_, buffers_);
    }
  }

  // Whole parameters, wherever they are, are those of before.
  void after_step(const torch::optim::Optimizer& optimizer) override {
    if (!optimizers_.contains(&optimizer)) return;
    {
      const Turn turn(mutex_);
      require_no_scope("an optimizer stepped");
    }
    refresh();
  }
  void after_load() override { refresh(); }

  [[nodiscard]] std::shared_ptr<void> open_parameters() override {
    {
      const Turn turn(mutex_);
      for (const auto& unit : units_) unit->start_gather();
      for (const auto& unit : units_) unit->finish_gather();
      if (num_scopes_++ == 0) {
        for (const auto& unit : units_) unit->watch_for_changes();
      }
    }
    return {this, [alive = std::weak_ptr(alive_)](Shard* shard) {
              if (!alive.expired()) shard->close_parameters();
            }};
  }

  void on_failure(const std::exception&) override {
    const Turn turn(mutex_);
    if (num_forwards_ == 0 && !is_in_backward_) return;
    num_forwards_ = 0;
    is_in_backward_ = false;
    is_open_ = false;
    if (is_held_open()) return;
    messages_->abandon();
    current_.reset();
    for (const auto& unit : units_) unit->abandon();
  }

  [[nodiscard]] std::optional<std::string> join_complaint() const override {
    return "[parallel] a sharded model needs all ranks in every step; use "
           "even_batches, or replicate the model";
  }

 private:
  // This rank's rows of a parameter; the table's row then names them.
  static std::string policy_of(
      const Parameter& row,
      const ShardedParameter& parameter,
      const std::string& unit) {
    const at::ScalarType computed = row.tensor.scalar_type();
    const bool is_offloaded = row.local.is_cpu() && !row.tensor.is_cpu();
    return concat(
        "in the unit of ",
        unit,
        ", rows ",
        row.layout.offset[0],
        " to ",
        row.layout.offset[0] + row.layout.extent[0],
        is_offloaded ? " kept on the host in " : " kept here in ",
        c10::toString(row.local.scalar_type()),
        ", computed in ",
        c10::toString(computed),
        ", reduced in ",
        c10::toString(parameter.reduce_dtype.value_or(computed)));
  }

  void say_raised(int count) const {
    if (count == 0) return;
    mesh_.world().logger().log_once_per_world(
        LogLevel::info,
        "parallel",
        concat(
            count,
            " parameters of lower precision are kept in Float, in which "
            "optimizers step (describe() says which)"));
  }

  // Of this rank, if parameters stay among them after a forward.
  [[nodiscard]] Group neighbours() const {
    if (options_.neighbours <= 1) return {};
    const Group& group = mesh_.group(Axis::shard);
    const int first = group.rank() / options_.neighbours * options_.neighbours;
    std::vector<int> ranks;
    for (int i = 0; i < options_.neighbours; ++i) {
      ranks.push_back(group.world_ranks()[static_cast<std::size_t>(first + i)]);
    }
    return mesh_.world().new_group(ranks);
  }

  ShardedParameter cut(
      Parameter& row,
      ParameterTable& table,
      const FirstValues& values,
      bool keeps_precision) {
    const Group& group = mesh_.group(Axis::shard);
    ShardedParameter parameter{row.name, row.tensor, {}, {}, nullptr, {}};
    if (!keeps_precision) parameter.reduce_dtype = options_.reduce_dtype;
    parameter.row_begins = row_begins(row.tensor.size(0), group.size());
    const at::ScalarType stored = row.tensor.scalar_type();
    const bool is_float = at::isFloatingType(stored);
    // Whoever lowers what is computed in wants to step in full precision.
    const bool raises = options_.master_weights ||
        (options_.param_dtype && row.tensor.requires_grad());
    const at::ScalarType kept =
        raises && at::isReducedFloatingType(stored) ? at::kFloat : stored;
    const at::ScalarType computed =
        is_float && !keeps_precision && options_.param_dtype
        ? *options_.param_dtype
        : stored;
    at::Tensor own = values.own_rows(row, parameter);
    const bool shares_memory = !options_.frees_parameters &&
        !options_.offloads_parts && kept == computed &&
        row.tensor.is_contiguous();
    if (!shares_memory) own = own.to(kept, false, /*copy=*/true).contiguous();
    if (options_.offloads_parts && !own.is_cpu()) own = own.cpu().pin_memory();
    const bool is_trained = row.tensor.requires_grad();
    make_dense(row.tensor, computed);
    if (options_.frees_parameters) {
      parameter.gate = std::make_unique<GatedTensor>(
          row.tensor, row.name, *this, units_.size(), mesh_.world().device());
    }
    parameter.local = own.detach().requires_grad_(is_trained);
    row.layout.offset[0] =
        parameter.row_begins[static_cast<std::size_t>(group.rank())];
    row.layout.extent[0] = parameter.local.size(0);
    row.layout.split_axes.push_back(Axis::shard);
    table.set_local(row, parameter.local);
    return parameter;
  }

  // Memory of its own, in order, and in the dtype that is computed in; the same
  // TensorImpl, so that the module sees it.
  static void make_dense(const at::Tensor& tensor, at::ScalarType dtype) {
    if (tensor.is_contiguous() && tensor.scalar_type() == dtype &&
        tensor.storage().nbytes() == tensor.nbytes()) {
      return;
    }
    const at::Tensor dense =
        tensor.detach().to(dtype, false, /*copy=*/true).contiguous();
    tensor.unsafeGetTensorImpl()->shallow_copy_from(dense.getIntrusivePtr());
  }

  // Those of batch normalisation stay as they are.
  void cast_buffers(
      torch::nn::Module& module,
      const std::vector<std::string>& full_precision) const {
    if (!options_.buffer_dtype) return;
    for (const auto& item : module.named_buffers()) {
      const at::Tensor& buffer = item.value();
      const std::string owner =
          item.key().substr(0, item.key().find_last_of('.'));
      if (buffer.defined() && buffer.is_floating_point() &&
          std::find(full_precision.begin(), full_precision.end(), owner) ==
              full_precision.end()) {
        make_dense(buffer, *options_.buffer_dtype);
      }
    }
  }

  void require_unchanged() const {
    for (const auto& unit : units_) {
      for (const ShardedParameter& parameter : unit->parameters()) {
        if (parameter.whole.requires_grad() &&
            !parameter.local.requires_grad()) {
          throw ConfigError(concat(
              "[parallel] parameter \"",
              parameter.name,
              "\" was frozen when it was prepared and is not any more, but "
              "nobody waits for its gradients; unfreeze it before prepare(), "
              "or prepare the model anew"));
        }
        if (!parameter.gate || !parameter.gate->is_bypassed()) continue;
        throw ConfigError(concat(
            "[parallel] the data of parameter \"",
            parameter.name,
            "\" was replaced after prepare() (by Module::to or set_data), so "
            "that its parts are not known any more; do that before prepare()"));
      }
    }
  }

  void before_read(std::size_t unit, bool is_filled) override {
    // Elsewhere a rank may be alone, and must not wait for others.
    if (!is_open_) return;
    const Turn turn(mutex_);
    if (is_held_open()) return;
    if (current_ == unit && (is_filled || units_[unit]->is_whole())) return;
    order_->touch(unit);
    units_[unit]->start_gather();
    units_[unit]->finish_gather();
    const auto previous = std::exchange(current_, unit);
    const bool frees = is_in_backward_ || options_.frees_after_forward;
    if (previous && *previous != unit && frees &&
        !order_->is_due_soon(*previous, kKept)) {
      units_[*previous]->release(
          /*neighbours_keep_it=*/!is_in_backward_ &&
          at::GradMode::is_enabled());
    }
    if (!(options_.prefetches_late && is_in_backward_)) prefetch(unit);
  }

  // Whatever comes after `unit`, if that is known.
  void prefetch(std::size_t unit) {
    if (!options_.prefetches) return;
    for (const std::size_t next : order_->next(options_.gathers_ahead)) {
      if (next != unit) units_[next]->start_gather();
    }
  }

  // Of the parameter at `place` among those of the unit that are trained.
  void on_gradient(std::size_t unit, std::size_t place) {
    const Turn turn(mutex_);
    if (!is_in_backward_) return;
    was_reached_ = true;
    if (pending_[unit] == 0) return;
    // Whoever computes a gradient with it has done so.
    const bool frees = options_.frees_parameters && !is_held_open() &&
        !order_->is_due_soon(unit, kKept);
    if (frees)
      units_[unit]->release_parameter(units_[unit]->trainable()[place]);
    if (reduces_) {
      if (options_.prefetches_late) messages_->make_room(unit);
      messages_->send(unit, place);
    }
    if (--pending_[unit] > 0) return;
    if (frees) units_[unit]->release();
    if (reduces_) messages_->complete(unit);
    if (options_.prefetches_late && options_.frees_parameters) prefetch(unit);
  }

  [[nodiscard]] bool is_held_open() const { return num_scopes_ > 0; }

  void require_no_scope(std::string_view what) const {
    if (!is_held_open()) return;
    throw ConfigError(concat(
        "[parallel] ",
        what,
        " while full_parameters() lives, whose parameters would not be those "
        "of the step; let it end before"));
  }

  void release_all() {
    for (const auto& unit : units_) {
      unit->finish_gather();
      unit->release();
    }
    current_.reset();
  }

  void refresh() {
    const Turn turn(mutex_);
    release_all();
    if (options_.frees_parameters && !is_held_open()) return;
    for (const auto& unit : units_) {
      unit->start_gather();
      unit->finish_gather();
      unit->watch_for_changes();
    }
  }

  // Parts of the other copies, and parameters that every rank has whole.
  void average_copies() {
    std::vector<at::Tensor> parts;
    for (const auto& unit : units_) {
      for (const std::size_t i : unit->trainable())
        parts.push_back(unit->parameters()[i].local);
    }
    average_gradients(mesh_.group(Axis::replicate), parts);
    std::vector<at::Tensor> whole;
    for (const at::Tensor& tensor : whole_) {
      if (tensor.requires_grad()) whole.push_back(tensor);
    }
    average_gradients(data_group_, whole, at::kDouble);
  }

  void close_parameters() {
    const Turn turn(mutex_);
    if (--num_scopes_ > 0) return;
    for (const auto& unit : units_) unit->keep_changes();
    if (options_.frees_parameters) release_all();
  }

  Mesh mesh_;
  ShardOptions options_;
  Group data_group_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> whole_;
  std::vector<at::Tensor> hooked_;
  /// Those that step on this model's parts.
  std::set<const torch::optim::Optimizer*> optimizers_;
  ShardPools pools_;
  std::vector<std::unique_ptr<ShardUnit>> units_;

  // Backward runs on other threads where there is an accelerator.
  std::mutex mutex_;
  std::atomic<bool> is_open_{false};
  /// Of full_parameters().
  int num_scopes_ = 0;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  bool is_in_backward_ = false;
  int num_forwards_ = 0;
  bool had_forward_ = false;
  std::optional<std::size_t> current_;
  TouchOrder forward_order_, evaluation_order_, backward_order_;
  TouchOrder* order_ = &forward_order_;

  bool reduces_ = false;
  bool was_reached_ = false;
  /// Some of this window have not been averaged over all ranks.
  bool owes_gradients_ = false;
  /// Trainable parameters of each unit without a gradient of this backward.
  std::vector<std::size_t> pending_;
  std::optional<GradientMessages> messages_;
};

}  // namespace

std::unique_ptr<Strategy> make_shard(
    const Mesh& mesh,
    const ShardOptions& options) {
  return std::make_unique<Shard>(mesh, options);
}

}  // namespace accelerate::detail
