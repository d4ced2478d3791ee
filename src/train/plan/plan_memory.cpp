#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <accelerate/detail/planned_step.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "parallel/plan/activation_checkpointing.h"
#include "parallel/shard/prepare/units.h"
#include "planning/training_memory.h"
#include "train/plan/record_step.h"
#include "train/plan/step_simulation.h"

namespace accelerate::detail {

namespace {

/// State of the training loop around the step that this thread records.
struct LoopAroundStep {
  /// The dtype to which the model's strategy would cast its inputs.
  std::optional<c10::ScalarType> input_dtype;
  /// Batches and outputs, which the loop's variables hold until the optimizer
  /// has stepped.
  std::vector<at::Tensor> held;
};
// Thread-local because other threads may run real steps meanwhile.
thread_local LoopAroundStep* loop = nullptr;

/// Makes samples_of() and mean_of() of this thread use `around` in its
/// lifetime.
class LoopScope {
 public:
  explicit LoopScope(LoopAroundStep& around) { loop = &around; }
  ~LoopScope() { loop = nullptr; }
  LoopScope(const LoopScope&) = delete;
  LoopScope& operator=(const LoopScope&) = delete;
};

at::Tensor held_by_loop(at::Tensor tensor) {
  if (loop != nullptr) loop->held.push_back(tensor);
  return tensor;
}

ModuleSelection selection_of(const MemoryPlanOptions& options) {
  ModuleSelection selection;
  if (!options.unit_classes.empty()) {
    selection.policy.kind = WrapPolicy::Kind::classes;
    selection.policy.class_names = options.unit_classes;
  }
  return selection;
}

PlannedModel describe_model(
    const torch::nn::Module& module,
    ParameterTable& table,
    const ModuleSelection& selection) {
  const UnitPlan units = plan_units(module, table, selection);
  std::unordered_map<const Parameter*, std::size_t> unit_of;
  for (std::size_t unit = 0; unit < units.units.size(); ++unit) {
    for (const Parameter* row : units.units[unit].rows)
      unit_of.emplace(row, unit);
  }
  PlannedModel model;
  model.num_units = units.units.size();
  for (const Parameter& row : table.rows()) {
    const at::Tensor& tensor = row.tensor;
    const auto unit = unit_of.find(&row);
    model.parameters.push_back(
        {.name = row.name,
         .num_elements = tensor.numel(),
         .num_rows = tensor.dim() > 0 ? tensor.size(0) : 1,
         .element_bytes = static_cast<std::int64_t>(tensor.element_size()),
         .is_trained = tensor.requires_grad(),
         .keeps_precision = units.full_precision.contains(&row),
         .unit = unit == unit_of.end() ? PlannedParameter::kUnsharded
                                       : unit->second});
  }
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.defined())
      model.buffer_bytes += static_cast<std::int64_t>(buffer.nbytes());
  }
  return model;
}

void require_on_cpu(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined() ||
        (tensor.is_cpu() && tensor.has_storage() &&
         tensor.storage().data() != nullptr))
      continue;
    throw ConfigError(format(
        "[train] plan_memory() runs a few samples on the CPU, but \"{}\" is on "
        "{}; plan before prepare(), with a model that is on the CPU and has "
        "memory (LibTorch has no meta kernels for most "
        "operators of C++ modules)",
        item.key(),
        tensor.device().str()));
  }
}

// This is as in the shared memory transport's layout.h.
constexpr std::int64_t kMessageSlotBytes = 256 << 10;

/// The traces with which cases are simulated.
class PlannedSteps {
 public:
  PlannedSteps(
      torch::nn::Module& module,
      const LossOfSamples& loss_of,
      const MemoryPlanOptions& options,
      bool is_split) {
    ParameterTable table(module);
    const ModuleSelection selection = selection_of(options);
    most_samples_ = options.batch_size.value_or(0);
    model_ = describe_model(module, table, selection);
    settings_ = {
        .state_bytes =
            static_cast<std::int64_t>(optimizer_state_bytes(options.optimizer)),
        .num_temporaries = options.optimizer.starts_with("ada") ? 2 : 0,
        .gradient_as_bucket_view = options.gradient_as_bucket_view,
        .keeps_freed_blocks = options.keep_freed_blocks,
        .computes_in_16_bits = true,
        .slot_bytes = kMessageSlotBytes,
        .on_disk = options.on_disk};
    const std::unique_ptr<Strategy> recomputation =
        make_recomputation(module, table, selection, options);
    const auto record = [&](bool is_16_bits, bool casts, bool recomputes) {
      record_case(
          module,
          table,
          loss_of,
          Key{is_16_bits, casts, recomputes},
          recomputes ? recomputation.get() : nullptr);
    };
    bool has_fp32 = false;
    bool has_16_bits = false;
    for (const FloatType each : options.precisions)
      (each == FloatType::fp32 ? has_fp32 : has_16_bits) = true;
    for (const bool recomputes : {false, true}) {
      if (has_fp32) record(false, false, recomputes);
      if (has_16_bits) record(true, false, recomputes);
      if (has_16_bits && is_split) record(true, true, recomputes);
    }
    if (!settings_.computes_in_16_bits) {
      notes_.emplace_back(
          "Sharded models are planned with parameters in fp32: the step cannot "
          "be run with parameters in 16 bits.");
    }
    notes_.emplace_back(
        "Activations: measured on the CPU with 2 and 4 samples, and "
        "extrapolated.");
  }

  [[nodiscard]] MemoryRow simulate(const MemoryCase& at) const {
    if (at.uses_fp8 || at.tensor > 1 || at.context > 1 || at.pipeline > 1) {
      throw ConfigError(
          "[train] plan_memory() measures only replicas and shards, in fp32, "
          "fp16 and bf16; accelerate-cpp estimate-memory --fits computes the "
          "memory of other splits, and of fp8, from a transformer's shape");
    }
    const bool is_16_bits = at.precision != FloatType::fp32;
    const auto trace = traces_.find(
        Key{is_16_bits, is_16_bits && is_split(at), at.recomputes});
    if (trace == traces_.end()) {
      throw ConfigError(
          "[train] the memory plan does not have this precision; add it to "
          "MemoryPlanOptions::precisions");
    }
    return simulate_step(model_, trace->second, at, settings_);
  }

  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  [[nodiscard]] bool is_split(const MemoryCase& at) const {
    return at.num_shards > 1 ||
        (at.num_ranks == 1 && settings_.on_disk != KeptOnDisk::nothing);
  }

  struct Key {
    bool is_16_bits;
    bool casts_parameters;
    bool recomputes;
    auto operator<=>(const Key&) const = default;
  };

  // Returns null, and adds a note, if the model has nothing that is chosen by
  // default.
  std::unique_ptr<Strategy> make_recomputation(
      torch::nn::Module& module,
      ParameterTable& table,
      const ModuleSelection& selection,
      const MemoryPlanOptions& options) {
    std::unique_ptr<Strategy> recomputation =
        make_activation_checkpointing({.modules = selection});
    try {
      recomputation->prepare(module, table);
    } catch (const ConfigError&) {
      if (!options.unit_classes.empty()) throw;
      recomputation.reset();
      notes_.emplace_back(
          "Nothing is recomputed: the model has no Sequential or ModuleList; "
          "name classes in unit_classes.");
    }
    return recomputation;
  }

  void record_case(
      torch::nn::Module& module,
      ParameterTable& table,
      const LossOfSamples& loss_of,
      const Key& key,
      Strategy* recomputation) {
    RecordedPrecision precision{.casts_parameters = key.casts_parameters};
    if (key.is_16_bits) precision.autocast = at::kBFloat16;
    LoopAroundStep around{
        .input_dtype = key.casts_parameters ? precision.autocast : std::nullopt,
        .held = {}};
    const LoopScope scope(around);
    const LossOfSamples step = [&](std::int64_t num_samples) {
      around.held.clear();
      return loss_of(num_samples);
    };
    try {
      traces_.emplace(
          key,
          record_step(
              module,
              table,
              model_,
              step,
              precision,
              recomputation,
              most_samples_));
    } catch (const c10::Error&) {
      if (!key.casts_parameters) throw;
      // A step function makes inputs in its own dtype, which some operators
      // refuse to combine with 16-bit parameters.
      traces_.emplace(
          key, traces_.at(Key{key.is_16_bits, false, key.recomputes}));
      settings_.computes_in_16_bits = false;
    }
  }

  PlannedModel model_;
  std::int64_t most_samples_ = 0;
  StepSettings settings_;
  std::map<Key, StepTrace> traces_;
  std::vector<std::string> notes_;
};

}  // namespace

MemoryPlan plan_memory(
    const World& world,
    torch::nn::Module& module,
    const LossOfSamples& loss_of,
    const MemoryPlanOptions& options) {
  require_on_cpu(module);
  MemoryPlan::Facts facts{
      .num_ranks = options.num_ranks.value_or(world.size()),
      .num_local_ranks = options.num_local_ranks.value_or(world.local_size()),
      .batch_size = options.batch_size.value_or(1),
      .precisions = options.precisions};
  const auto steps = std::make_shared<const PlannedSteps>(
      module,
      loss_of,
      options,
      facts.num_ranks > 1 || options.on_disk != KeptOnDisk::nothing);
  facts.notes = steps->notes();
  return {std::move(facts), [steps](const MemoryCase& at) {
            return steps->simulate(at);
          }};
}

at::Tensor samples_of(const at::Tensor& inputs, std::int64_t num_samples) {
  if (!inputs.defined() || inputs.dim() == 0 || inputs.size(0) == 0) {
    throw ConfigError(
        "[train] plan_memory() needs example inputs with at least one sample "
        "along dimension 0");
  }
  const at::Tensor places =
      at::arange(num_samples, at::kLong).remainder(inputs.size(0));
  at::Tensor samples = held_by_loop(inputs.detach().index_select(0, places));
  const bool is_cast =
      loop != nullptr && loop->input_dtype && samples.is_floating_point();
  return is_cast ? samples.to(*loop->input_dtype) : samples;
}

at::Tensor mean_of(const at::Tensor& output) {
  return held_by_loop(output.to(at::kFloat)).mean();
}

}  // namespace accelerate::detail
