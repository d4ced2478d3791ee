#include "parallel/shard/shard.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/mesh.h"
#include "parallel/replicate/same_model.h"
#include "parallel/shard/prepare/bind_locals.h"
#include "parallel/shard/prepare/initial_values.h"
#include "parallel/shard/prepare/make_units.h"
#include "parallel/shard/prepare/prepare_shards.h"
#include "parallel/shard/prepare/units.h"
#include "parallel/shard/reduction/average_replicas.h"
#include "parallel/shard/reduction/gradient_reducer.h"
#include "parallel/shard/shard_unit.h"
#include "parallel/shard/steps_in_backward.h"
#include "parallel/shard/unshard/unshard_schedule.h"

namespace accelerate::detail {

namespace {

// Calls a function when this backward's gradient of a parameter is complete.
class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit GradientHook(std::function<void()> on_gradient)
      : on_gradient_(std::move(on_gradient)) {}
  void operator()(const at::Tensor&) override { on_gradient_(); }

 private:
  std::function<void()> on_gradient_;
};

// Holds the lock, and bypasses gates on this thread.
struct LockedScope {
  explicit LockedScope(std::mutex& mutex) : lock(mutex) {}
  std::lock_guard<std::mutex> lock;
  BypassGates bypass;
};

class Shard final : public Strategy, public GateKeeper {
 public:
  Shard(
      const Mesh& mesh,
      ShardOptions options,
      const MakeShardTraffic& make_traffic)
      : mesh_(mesh),
        options_(std::move(options)),
        make_traffic_(make_traffic),
        model_group_(replica_group(Layout(), mesh)) {}

  ~Shard() override {
    for (const at::Tensor& parameter : hooked_)
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }

  [[nodiscard]] StrategyTraits traits() const override {
    StrategyTraits traits = refusals_of_shard();
    traits.takes_empty = options_.shards_parameters;
    if (options_.casts_inputs) traits.input_dtype = options_.param_dtype;
    traits.output_dtype = options_.output_dtype;
    traits.steps_in_parts = options_.disk.has_value();
    if (options_.disk && options_.disk->steps_in_backward) {
      traits.clipping_complaint =
          "[parallel] gradients cannot be clipped or scaled where "
          "step_in_backward is true, since backward has stepped on them; leave "
          "one of them out, and use bf16 instead of fp16";
    }
    return traits;
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    const BypassGates bypass;
    for (const auto& buffer : module.buffers()) {
      if (buffer.defined()) buffers_.push_back(buffer);
    }
    const UnitPlan plan =
        plan_units(module, table, options_.units, options_.ignored_modules);
    require_same_model(model_group_, table, buffers_);
    const InitialValues values = share_values(plan, table);
    if (options_.disk) {
      disk_ = std::make_unique<DiskShards>(
          *options_.disk,
          mesh_.world().rank(),
          mesh_.world().device(),
          largest_shard_of(plan, mesh_.degree(Axis::shard)));
    }
    const auto pool = std::make_shared<BlockPool>();
    take_units(make_units(
        {.mesh = mesh_,
         .options = options_,
         .make_traffic = make_traffic_,
         .keeper = *this,
         .pool = pool,
         .disk = disk_.get()},
        module,
        plan,
        values,
        table));
    if (!options_.allocator_keeps_blocks) keep_blocks(*pool);
    for (const Parameter* row : plan.unsharded)
      unsharded_[is_expert(*row)].push_back(row->tensor);
    if (options_.buffer_dtype) {
      cast_buffers(module, *options_.buffer_dtype, plan.full_precision_modules);
    }
    backward_.pending.resize(units_.size());
    hook_gradients();
    if (options_.shards_parameters) {
      for (const auto& unit : units_) unit->reshard();
    }
    if (options_.disk && options_.disk->steps_in_backward)
      steps_.emplace(units_, *disk_, *this);
    reducer_.emplace(units_, *traffic_, [this](std::size_t unit) {
      if (steps_) steps_->on_reduced(unit);
    });
  }

  void bind(torch::optim::Optimizer& optimizer, const ParameterTable& table)
      override {
    bind_locals(optimizer, table);
    if (disk_) disk_->bind(optimizer);
  }
  void bind_added(
      torch::optim::Optimizer& optimizer,
      const ParameterTable& table) override {
    bind_locals(optimizer, table);
    if (disk_) disk_->bind(optimizer);
  }

  void before_forward() override {
    const LockedScope lock(mutex_);
    if (num_forwards_++ > 0 || phase_ == Phase::backward) return;
    if (is_held_open()) {
      for (const auto& unit : units_) unit->begin_forward();
    } else {
      // Strategies that divided parameters earlier may have made them full.
      require_unchanged(units_);
      if (scales_) scales_->compute();
    }
    const bool records = at::GradMode::is_enabled();
    window_.had_forward = window_.had_forward || records;
    for (UnshardSchedule& schedule : schedules_) {
      schedule.begin(
          records ? UnshardSchedule::Pass::forward
                  : UnshardSchedule::Pass::evaluation);
    }
    traffic_->begin_forward(records);
    if (expert_traffic_) expert_traffic_->begin_forward(records);
    phase_ = Phase::forward;
  }

  void after_forward(const ForwardOutputs&) override {
    const LockedScope lock(mutex_);
    if (--num_forwards_ > 0 || phase_ == Phase::backward) return;
    phase_ = Phase::idle;
    for (const auto& unit : units_) unit->end_forward();
    for (UnshardSchedule& schedule : schedules_) {
      schedule.end();
      if (options_.shards_parameters)
        schedule.reshard_after_forward(is_held_open());
    }
  }

  void before_backward(bool sync_gradients, const at::Tensor&) override {
    const LockedScope lock(mutex_);
    require_no_scope("backward() was called");
    require_unchanged(units_);
    if (disk_) disk_->forget_unused();
    if (steps_) steps_->begin(sync_gradients);
    backward_.reduces = sync_gradients || options_.reduces_every_backward;
    backward_.was_reached = false;
    backward_.knows_reached = false;
    for (std::size_t u = 0; u < units_.size(); ++u)
      backward_.pending[u] = units_[u]->num_trainable();
    reducer_->begin();
    for (UnshardSchedule& schedule : schedules_)
      schedule.begin(UnshardSchedule::Pass::backward);
    phase_ = Phase::backward;
  }

  void after_backward(bool sync_gradients) override {
    const LockedScope lock(mutex_);
    phase_ = Phase::idle;
    for (UnshardSchedule& schedule : schedules_) schedule.end();
    const bool was_reached = backward_.was_reached;
    window_.owes_gradients = window_.owes_gradients || was_reached;
    // The window's last backward may not have reached this model.
    const bool settles = sync_gradients && window_.owes_gradients;
    if (backward_.reduces && (was_reached || settles)) {
      reducer_->end_gradients();
      for (std::size_t u = 0; u < units_.size(); ++u) {
        // Other ranks may have reached parameters of the unit that this rank's
        // backward did not reach.
        if (std::exchange(backward_.pending[u], 0) > 0 ||
            units_[u]->has_gradient())
          reducer_->complete(u);
      }
      reducer_->finish(/*is_usual=*/was_reached);
    }
    if (options_.shards_parameters && !is_held_open()) reshard_all();
    if (!settles) return;
    window_.owes_gradients = false;
    average_replicas();
    if (std::exchange(window_.had_forward, false) &&
        options_.broadcast_buffers) {
      const at::NoGradGuard no_grad;
      broadcast_all(model_group_, buffers_);
    }
  }

  void after_prepare(const ModelCalls& calls) override {
    begin_plain_backward_ = calls.begin_plain_backward;
    if (steps_) steps_->use(calls);
    for (const auto& unit : units_) unit->note_memory();
  }
  void before_plain_backward(bool sync_gradients) override {
    before_backward(sync_gradients, {});
    is_plain_ = true;
  }
  void after_plain_backward(bool sync_gradients) override {
    if (std::exchange(is_plain_, false)) after_backward(sync_gradients);
  }

  void before_step() override {
    const LockedScope lock(mutex_);
    if (!is_held_open()) require_unchanged(units_);
  }

  void average_gradient(const at::Tensor& gradient) override {
    mesh_.gradient_group().all_reduce(gradient);
    gradient.div_(mesh_.gradient_group().size());
  }

  // Full parameters that were gathered before the step are stale.
  void after_step() override {
    {
      const LockedScope lock(mutex_);
      require_no_scope("an optimizer stepped");
      if (steps_) steps_->end_step();
    }
    refresh();
  }
  void after_load() override {
    if (disk_) disk_->refresh_rows();
    refresh();
  }

  [[nodiscard]] std::vector<ParameterPart> step_parts(
      const torch::optim::Optimizer& optimizer) override {
    return disk_ ? disk_->step_parts(optimizer) : std::vector<ParameterPart>();
  }
  void before_part(
      const torch::optim::Optimizer& optimizer,
      std::span<const ParameterPart> parts) override {
    disk_->before_part(optimizer, parts);
  }
  void after_part(
      const torch::optim::Optimizer& optimizer,
      const ParameterPart& part) override {
    disk_->after_part(optimizer, part);
  }

  [[nodiscard]] std::shared_ptr<void> unshard_parameters() override {
    {
      const LockedScope lock(mutex_);
      if (!is_held_open()) open_parameters();
      ++num_scopes_;
    }
    return {this, [alive = std::weak_ptr(alive_)](Shard* shard) {
              if (!alive.expired()) shard->close_parameters();
            }};
  }

  void on_failure(const std::exception&) override {
    const LockedScope lock(mutex_);
    if (num_forwards_ == 0 && phase_ != Phase::backward) return;
    num_forwards_ = 0;
    is_plain_ = false;
    phase_ = Phase::idle;
    if (is_held_open()) {
      for (const auto& unit : units_) unit->end_forward();
      return;
    }
    reducer_->abandon();
    for (UnshardSchedule& schedule : schedules_) schedule.forget();
    for (const auto& unit : units_) unit->abandon();
  }

 private:
  // Makes unsharded parameters and buffers equal on all ranks. Returns the
  // values that shards are cut from.
  InitialValues share_values(const UnitPlan& plan, const ParameterTable& table)
      const {
    InitialValues values(mesh_, table);
    for (const Parameter* row : plan.unsharded) values.make_full(*row);
    values.broadcast(table);
    broadcast_all(model_group_, buffers_);
    return values;
  }

  void take_units(ShardUnits made) {
    traffic_ = std::move(made.traffic);
    expert_traffic_ = std::move(made.expert_traffic);
    units_ = std::move(made.units);
    scales_ = std::move(made.scales);
    for (std::size_t u = 0; u < units_.size(); ++u) schedule_of(u).add(u);
  }

  // Memory of one unit is kept for the next.
  void keep_blocks(BlockPool& pool) {
    std::int64_t largest = 0;
    for (const auto& unit : units_)
      largest = std::max(largest, unit->full_bytes());
    pool.keep_up_to(largest);
    traffic_->keep_memory(largest);
    if (expert_traffic_) expert_traffic_->keep_memory(largest);
  }

  void hook_gradients() {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const auto& trainable = units_[u]->trainable();
      for (std::size_t i = 0; i < trainable.size(); ++i) {
        const at::Tensor& full = units_[u]->parameters()[trainable[i]].full;
        hooked_.push_back(full);
        torch::autograd::impl::set_post_acc_grad_hooks(
            full, std::make_unique<GradientHook>([this, u, i] {
              on_gradient(u, i);
            }));
      }
    }
    // A backward may reach only these.
    for (const auto& tensors : unsharded_) {
      for (const at::Tensor& tensor : tensors) {
        hooked_.push_back(tensor);
        torch::autograd::impl::set_post_acc_grad_hooks(
            tensor, std::make_unique<GradientHook>([this] {
              notice_plain_backward();
              const LockedScope lock(mutex_);
              backward_.was_reached = true;
            }));
      }
    }
  }

  void before_read(std::size_t unit, bool is_filled) override {
    notice_plain_backward();
    // Outside a pass, other ranks might not read the parameter, so this rank
    // must not wait for them.
    if (phase_ == Phase::idle) return;
    const LockedScope lock(mutex_);
    learn_what_is_reached();
    if (!is_held_open()) schedule_of(unit).before_read(unit, is_filled);
  }

  void call(GatedCall& call) override {
    try {
      call.run();
    } catch (const c10::Error& error) {
      explain_unavailable(error);
      throw;
    }
  }

  [[nodiscard]] bool may_replace() const override { return false; }

  // Called when an unannounced backward reads a parameter, or has computed its
  // gradient.
  void notice_plain_backward() const {
    if (phase_ == Phase::idle && begin_plain_backward_ &&
        torch::autograd::get_current_graph_task_id() >= 0) {
      begin_plain_backward_();
    }
  }

  // Called when the gradient at `place` among the unit's is complete.
  void on_gradient(std::size_t unit, std::size_t place) {
    notice_plain_backward();
    const LockedScope lock(mutex_);
    if (phase_ == Phase::forward) {
      throw ConfigError(
          "[parallel] a backward must not run inside a sharded model's "
          "forward, but did; end the forward (Model::call()) first");
    }
    if (phase_ != Phase::backward) return;
    learn_what_is_reached();
    backward_.was_reached = true;
    if (backward_.pending[unit] == 0) return;
    // This backward no longer reads the parameter.
    const bool frees = options_.shards_parameters && !is_held_open() &&
        !schedule_of(unit).is_due_soon(unit);
    if (frees)
      units_[unit]->reshard_parameter(units_[unit]->trainable()[place]);
    if (backward_.reduces) {
      if (options_.prefetches_after_gradients) reducer_->make_room(unit);
      reducer_->send(unit, place);
    }
    if (--backward_.pending[unit] > 0) return;
    if (frees) units_[unit]->reshard();
    if (backward_.reduces) reducer_->complete(unit);
    if (options_.prefetches_after_gradients && options_.shards_parameters)
      schedule_of(unit).prefetch(unit);
  }

  // Finds out which parameters this backward will reach, so that no reduction
  // waits for a gradient that does not come. (One that comes from a backward
  // inside this one is reduced at its end.)
  void learn_what_is_reached() {
    if (phase_ != Phase::backward ||
        std::exchange(backward_.knows_reached, true)) {
      return;
    }
    const auto* const nodes =
        torch::autograd::get_current_graph_task_nodes_in_graph();
    if (nodes == nullptr) return;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const auto& trainable = units_[u]->trainable();
      const auto num_reached = static_cast<std::size_t>(
          std::count_if(trainable.begin(), trainable.end(), [&](std::size_t i) {
            const auto accumulator =
                torch::autograd::impl::try_get_grad_accumulator(
                    units_[u]->parameters()[i].full);
            return accumulator != nullptr && nodes->contains(accumulator.get());
          }));
      if (num_reached > 0 || (backward_.reduces && reducer_->pass_by(u)))
        backward_.pending[u] = num_reached;
    }
  }

  [[nodiscard]] bool is_held_open() const { return num_scopes_ > 0; }

  [[nodiscard]] bool has_experts(const ShardUnit& unit) const {
    return &unit.traffic() == expert_traffic_.get();
  }
  [[nodiscard]] UnshardSchedule& schedule_of(std::size_t unit) {
    return schedules_[has_experts(*units_[unit])];
  }
  void reshard_all() {
    for (UnshardSchedule& schedule : schedules_) schedule.reshard_all();
  }

  void require_no_scope(std::string_view event) const {
    if (!is_held_open()) return;
    throw ConfigError(format(
        "[parallel] {} while full_parameters() lives, whose parameters are not "
        "those of the step; end its scope before",
        event));
  }

  void refresh() {
    const LockedScope lock(mutex_);
    reshard_all();
    if (scales_) scales_->forget();
    if (options_.shards_parameters && !is_held_open()) return;
    for (const auto& unit : units_) {
      unit->start_gather();
      unit->finish_gather();
      unit->forget_changes();
    }
  }

  // Averages gradients of shards over replicas, and those of unsharded
  // parameters over all ranks.
  void average_replicas() {
    std::vector<at::Tensor> shards[2];  // as unsharded_
    for (const auto& unit : units_) {
      for (const std::size_t i : unit->trainable())
        shards[has_experts(*unit)].push_back(unit->parameters()[i].local);
    }
    average_shards(
        mesh_.group({Axis::replicate, Axis::context}), shards[0], options_);
    average_unsharded(mesh_.gradient_group(), unsharded_[0], options_);
    if (!expert_traffic_) return;
    const Mesh experts = mesh_.experts();
    average_shards(
        experts.group({Axis::replicate, Axis::context}), shards[1], options_);
    average_unsharded(
        experts.group({Axis::replicate, Axis::shard, Axis::context}),
        unsharded_[1],
        options_);
  }

  void open_parameters() {
    if (scales_ && phase_ == Phase::idle) {
      // The scope shows the weights themselves, not their float8 roundings.
      reshard_all();
      scales_->forget();
    }
    for (const auto& unit : units_) unit->start_open();
    for (const auto& unit : units_) unit->finish_gather();
    for (const auto& unit : units_) unit->forget_changes();
  }

  void close_parameters() {
    const LockedScope lock(mutex_);
    if (--num_scopes_ > 0) return;
    for (const auto& unit : units_) unit->close();
    if (options_.shards_parameters) reshard_all();
  }

  enum class Phase { idle, forward, backward };

  struct Backward {
    bool reduces = false;
    /// True if a parameter of this model got a gradient.
    bool was_reached = false;
    /// True once `pending` counts only what this backward reaches.
    bool knows_reached = false;
    /// Number of trainable parameters without a gradient so far, by unit.
    std::vector<std::size_t> pending = {};
  };

  /// State of the micro-steps since gradients were last averaged over all
  /// ranks.
  struct Window {
    bool had_forward = false;
    bool owes_gradients = false;
  };

  Mesh mesh_;
  ShardOptions options_;
  MakeShardTraffic make_traffic_;
  /// All ranks that hold the model, or this pipeline stage of it.
  Group model_group_;
  std::vector<at::Tensor> buffers_;
  /// Parameters that stay unsharded: those that all ranks share, and those of
  /// experts.
  std::vector<at::Tensor> unsharded_[2];
  std::vector<at::Tensor> hooked_;
  /// Null if nothing lies in files.
  std::unique_ptr<DiskShards> disk_;
  /// Set if weights are gathered in float8.
  std::optional<GatheredScales> scales_;
  std::unique_ptr<ShardTraffic> traffic_;
  /// Null if no experts are divided.
  std::unique_ptr<ShardTraffic> expert_traffic_;
  std::vector<std::unique_ptr<ShardUnit>> units_;

  // Backward runs on other threads if there is an accelerator.
  std::mutex mutex_;
  std::atomic<Phase> phase_{Phase::idle};
  std::function<void()> begin_plain_backward_;
  /// True in a plain backward.
  bool is_plain_ = false;
  /// Number of open forwards, which may be nested, and run on several threads.
  int num_forwards_ = 0;
  /// Number of open full_parameters() scopes.
  int num_scopes_ = 0;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  /// One for units that all ranks hold, one for units of experts, which only
  /// the ranks that hold them read.
  UnshardSchedule schedules_[2]{{units_, options_}, {units_, options_}};
  Backward backward_;
  Window window_;
  /// Set if backward steps on shards.
  std::optional<StepsInBackward> steps_;
  std::optional<GradientReducer> reducer_;
};

}  // namespace

std::unique_ptr<Strategy> make_shard(
    const Mesh& mesh,
    const ShardOptions& options) {
  return make_shard(mesh, options, &make_shard_traffic);
}

std::unique_ptr<Strategy> make_shard(
    const Mesh& mesh,
    const ShardOptions& options,
    const MakeShardTraffic& make_traffic) {
  return std::make_unique<Shard>(mesh, options, make_traffic);
}

}  // namespace accelerate::detail
