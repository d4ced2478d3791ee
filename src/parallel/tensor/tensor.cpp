#include "parallel/tensor/tensor.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/gate.h"
#include "gate/watched_tensor.h"
#include "parallel/attention/attention_layers.h"
#include "parallel/full_scope.h"
#include "parallel/replicate/same_model.h"
#include "parallel/shard/prepare/bind_locals.h"
#include "parallel/shard/prepare/initial_values.h"
#include "parallel/sliced_parameters.h"
#include "parallel/tensor/divide_sequences.h"
#include "parallel/tensor/divided_additions.h"
#include "parallel/tensor/divided_programs.h"
#include "parallel/tensor/split_keeper.h"
#include "parallel/tensor/split_layers.h"

namespace accelerate::detail {

namespace {

class TensorParallel final : public Strategy {
 public:
  TensorParallel(
      const Mesh& mesh,
      std::optional<ParallelizePlan> plan,
      bool divides_sequences,
      std::shared_ptr<const torch::nn::Module> whole_model)
      : mesh_(mesh),
        plan_(std::move(plan)),
        divides_sequences_(divides_sequences),
        whole_model_(std::move(whole_model)) {}

  [[nodiscard]] StrategyTraits traits() const override {
    return {
        // `shard` gives memory to parameters that this strategy does not split.
        .takes_empty = mesh_.degree(Axis::shard) > 1,
        .join_complaint =
            "[parallel] the ranks of a tensor-parallel model compute each "
            "layer together, so all must take every step; use even_batches",
        .sliced_lomo_complaint =
            "[parallel] lomo_backward() got an optimizer that needs "
            "full parameters, or all gradients at once, but ranks hold slices "
            "of this tensor-parallel model's; use Lomo without clip_grad_norm"};
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    const BypassGates bypass;
    require_unwatched(table);
    const Group& group = mesh_.group(Axis::tensor);
    std::vector<SplitParameter> splits = whole_model_
        ? splits_of_stage(*whole_model_, table)
        : splits_of(module, table);
    const DividedPrograms programs = divided_programs_in(module);
    divide_programs(programs, table, group.size(), group.rank(), splits);
    programs_.assign(programs.begin(), programs.end());
    additions_ = divide_additions(table, splits);
    const Group model_group = replica_group(Layout(), mesh_);
    std::vector<at::Tensor> buffers = module.buffers();
    std::erase_if(
        buffers, [](const at::Tensor& buffer) { return !buffer.defined(); });
    require_same_model(model_group, table, buffers);
    InitialValues values(mesh_, table);
    for (const SplitParameter& split : splits) {
      // Only tensors with memory can be watched.
      if (!split.dim) values.make_full(*table.find(split.name));
    }
    values.broadcast(table);
    broadcast_all(model_group, buffers);
    keeper_ = std::make_shared<SplitKeeper>(group);
    for (const SplitParameter& split : splits)
      prepare_row(*find_row(table, split.name), split, values);
    start_additions(additions_, table, group, keeper_);
    watch_attention(module, table, splits);
  }

  void bind(torch::optim::Optimizer& optimizer, const ParameterTable& table)
      override {
    bind_locals(optimizer, table);
  }

  void after_prepare(const ModelCalls&) override {
    for (Watched& each : watched_) {
      if (keeper_of(each.tensor) == nullptr)
        each.memory = each.tensor.storage().data();
    }
  }

  void before_backward(bool, const at::Tensor&) override {
    full_.require_closed();
    require_in_place();
  }

  void before_plain_backward(bool sync_gradients) override {
    before_backward(sync_gradients, {});
  }

  // Recomputed forwards leave their last input behind.
  void after_backward(bool) override { keeper_->forget_input(); }
  void after_plain_backward(bool) override { keeper_->forget_input(); }

  void before_forward() override {
    require_in_place();
    keeper_->begin_forward();
  }
  void after_forward(const ForwardOutputs&) override { keeper_->end_forward(); }

  [[nodiscard]] std::shared_ptr<void> unshard_parameters() override {
    return full_.enter();
  }

  void on_failure(const std::exception& error) override {
    if (!keeper_->is_in_forward()) return keeper_->forget_input();
    keeper_->abandon_forward();
    const auto* const failure = dynamic_cast<const c10::Error*>(&error);
    if (failure == nullptr || keeper_->last_slice().empty()) return;
    const std::string text = failure->what_without_backtrace();
    // LibTorch has no type for errors about shapes.
    if (text.find("size") == std::string::npos &&
        text.find("shape") == std::string::npos) {
      return;
    }
    throw ConfigError(format(
        "[parallel] {}: {}; code after it that needs the size in one process, "
        "as a view with the number of heads does, must take sizes from its "
        "input, or the layer must return the full result (output_layouts "
        "Replicate)",
        text.substr(0, text.find('\n')),
        keeper_->last_slice()));
  }

 private:
  [[nodiscard]] std::vector<SplitParameter> splits_of(
      const torch::nn::Module& module,
      const ParameterTable& table) const {
    return plan_splits(
        module, table, plan_of(module), mesh_.degree(Axis::tensor));
  }

  // The splits of the whole model's parameters that this stage has, under their
  // names in the stage.
  [[nodiscard]] std::vector<SplitParameter> splits_of_stage(
      const torch::nn::Module& whole,
      const ParameterTable& table) const {
    const ParameterTable whole_table(whole);
    std::vector<SplitParameter> splits;
    for (SplitParameter& split : splits_of(whole, whole_table)) {
      const Parameter* const row =
          table.find(whole_table.find(split.name)->tensor);
      if (row == nullptr) continue;
      split.name = row->name;
      splits.push_back(std::move(split));
    }
    return splits;
  }

  [[nodiscard]] ParallelizePlan plan_of(const torch::nn::Module& module) const {
    if (plan_) return *plan_;
    InferredPlan inferred =
        infer_parallelize_plan(module, mesh_.degree(Axis::tensor));
    if (inferred.plan.empty()) {
      mesh_.world().logger().log_once_per_world(
          LogLevel::warning,
          "parallel",
          format(
              "tensor is {}, but no layer of a model can be split, so that its "
              "ranks all compute the same; give it parallelize_plan\n{}",
              mesh_.degree(Axis::tensor),
              inferred.explain()));
    }
    if (divides_sequences_ && !divide_sequences(module, inferred.plan)) {
      mesh_.world().logger().log_once_per_world(
          LogLevel::warning,
          "parallel",
          "sequence_parallelism is set, but between the split layers of a "
          "model there are none that could work on slices of a sequence: it "
          "has no layers of torch::nn::Transformer, and no Sequential has only "
          "norms, dropout and activations between a RowwiseParallel and a "
          "ColwiseParallel layer; give the model a "
          "parallelize_plan with SequenceParallel layers");
    }
    return std::move(inferred.plan);
  }

  // Watches attention modules whose heads are divided.
  void watch_attention(
      const torch::nn::Module& module,
      const ParameterTable& table,
      const std::vector<SplitParameter>& splits) {
    const auto split_of = [&](const at::Tensor& tensor) {
      const Parameter* const row =
          tensor.defined() ? table.find(tensor) : nullptr;
      const auto found =
          std::find_if(splits.begin(), splits.end(), [&](const auto& split) {
            return row != nullptr && split.name == row->name;
          });
      return found == splits.end() ? nullptr : &*found;
    };
    for (const auto& item :
         module.named_modules(std::string(), /*include_self=*/false)) {
      const auto* const attention =
          item.value()->as<torch::nn::MultiheadAttentionImpl>();
      if (attention == nullptr) continue;
      const SplitParameter* const weight = split_of(
          attention->_qkv_same_embed_dim ? attention->in_proj_weight
                                         : attention->q_proj_weight);
      if (weight == nullptr || weight->num_heads == 0) continue;
      const SplitParameter* const out = split_of(attention->out_proj->weight);
      const bool out_takes_heads = out != nullptr && out->product &&
          out->product->is_rowwise && slice_in(out->product->input) != nullptr;
      const Group& group = mesh_.group(Axis::tensor);
      attention_layers_->watch(
          item.key(),
          *attention,
          SplitHeads{
              group,
              slice_begins(attention->options.num_heads(), group.size()),
              keeper_.get()},
          out_takes_heads);
    }
  }

  static Parameter* find_row(ParameterTable& table, const std::string& name) {
    for (Parameter& row : table.rows()) {
      if (row.name == name) return &row;
    }
    throw InternalError(format("[parallel] there is no parameter {}", name));
  }

  // Without the memory that it had, a parameter is not watched any more.
  void require_in_place() const {
    if (full_.is_open()) return;
    for (const Watched& each : watched_) {
      // Memory that comes and goes is its keeper's concern.
      if (keeper_of(each.tensor) != nullptr ||
          each.tensor.storage().data() == each.memory)
        continue;
      throw ConfigError(format(
          "[parallel] the data of parameter \"{}\" was replaced after "
          "prepare() (by Module::to or set_data), so it is not a slice that "
          "ranks compute with together any more; do that before prepare()",
          each.name));
    }
  }

  static void require_unwatched(const ParameterTable& table) {
    for (const Parameter& row : table.rows()) {
      if (!is_watched(row.tensor) || has_only_added_products(row.tensor))
        continue;
      throw ConfigError(format(
          "[parallel] operators on \"{}\" are watched already, by an "
          "Accelerator that split it or by hooks of its module; build the "
          "model again, or remove the hooks",
          row.name));
    }
  }

  void prepare_row(
      Parameter& row,
      const SplitParameter& split,
      const InitialValues& values) {
    WatchedSplit watched{split, row.layout.global_shape, {}, {}};
    if (split.dim) divide(row, split, values, watched);
    watched.local_shape = row.tensor.sizes().vec();
    if (!split.is_watched()) return;
    const std::size_t unit = keeper_->add(std::move(watched));
    watch_tensor(row.tensor, {keeper_, unit, keeper_.get()});
    watched_.push_back({row.name, row.tensor});
  }

  // Leaves this rank its slice of a row.
  void divide(
      Parameter& row,
      const SplitParameter& split,
      const InitialValues& values,
      WatchedSplit& watched) {
    const Group& group = mesh_.group(Axis::tensor);
    const std::int64_t dim = *split.dim;
    const auto rank = static_cast<std::size_t>(group.rank());
    RangesByRank ranges;
    at::Tensor own;
    if (split.projections.empty()) {
      watched.begins = begins_of(split, row.tensor.size(dim), group.size());
      ranges = ranges_between(watched.begins);
      own = values.own_box(row, Axis::tensor, dim, watched.begins);
    } else {
      ranges = rows_by_head(split, group.size());
      own = values.own_rows(row, Axis::tensor, ranges);
    }
    become_slice(row.tensor, own.clone(at::MemoryFormat::Contiguous));
    if (split.projections.empty()) {
      row.layout.split(Axis::tensor, dim, watched.begins[rank], own.size(dim));
    } else {
      row.layout.split_rows(Axis::tensor, ranges[rank]);
    }
    std::vector<std::string> places;
    for (const auto& [first, last] : ranges[rank])
      places.push_back(format("{} to {}", first, last));
    row.policy = format(
        "split along dimension {} over {} ranks, {} here",
        dim,
        group.size(),
        join(places, ", "));
    slices_.add(row.tensor, dim, std::move(ranges), group);
  }

  Mesh mesh_;
  std::optional<ParallelizePlan> plan_;
  bool divides_sequences_;
  std::shared_ptr<const torch::nn::Module> whole_model_;
  /// Lives as long as the parameters, so that the module keeps working
  /// tensor-parallel after the Accelerator is gone.
  std::shared_ptr<SplitKeeper> keeper_;
  std::shared_ptr<AttentionLayers> attention_layers_ =
      std::make_shared<AttentionLayers>();
  SlicedParameters slices_;
  /// Parameters whose operators the keeper sees.
  struct Watched {
    std::string name;
    at::Tensor tensor;
    const void* memory = nullptr;  ///< when all strategies were prepared
  };
  std::vector<Watched> watched_;
  void set_others_full(bool is_full) const {
    for (const auto& each : programs_) {
      if (const auto program = each.lock()) program->set_full(is_full);
    }
    for (const DividedAddition& each : additions_)
      each.keeper->set_full(is_full);
  }

  /// Programs among the model's modules.
  std::vector<std::weak_ptr<DividedProgram>> programs_;
  /// What keepers of adapters add to divided layers.
  std::vector<DividedAddition> additions_;
  /// The open full_parameters() scope.
  FullScope full_{
      [this] {
        slices_.open();
        keeper_->set_full(true);
        attention_layers_->set_full(true);
        set_others_full(true);
      },
      [this] {
        set_others_full(false);
        attention_layers_->set_full(false);
        keeper_->set_full(false);
        slices_.close();
      }};
};

}  // namespace

std::unique_ptr<Strategy> make_tensor(
    const Mesh& mesh,
    const std::optional<ParallelizePlan>& plan,
    bool divides_sequences,
    std::shared_ptr<const torch::nn::Module> whole_model) {
  return std::make_unique<TensorParallel>(
      mesh, plan, divides_sequences, std::move(whole_model));
}

}  // namespace accelerate::detail
