#include "engines/explain_request.h"

#include <array>
#include <string_view>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Nothing for a subject without text.
std::string line(std::string_view subject, std::string_view text) {
  if (text.empty()) return {};
  std::string padded(subject);
  padded.resize(20, ' ');
  return format("  {}{}\n", padded, text);
}

// What make_plan() chooses for an unset degree.
std::string_view
open_degree(Axis axis, ShardSpan span, bool replicate_is_open) {
  if (axis == Axis::replicate) return "the ranks that are left";
  if (axis != Axis::shard || span == ShardSpan::none) return "1";
  return span == ShardSpan::node && replicate_is_open
      ? "the ranks of each node"
      : "all ranks that the other degrees leave";
}

std::string describe_degrees(const TrainingRequest& request) {
  const ShardSpan span =
      request.sharding ? request.sharding->span : ShardSpan::none;
  const bool replicate_is_open = !request.degree(Axis::replicate);
  std::vector<std::string> given;
  for (int i = 0; i < kNumAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    const std::optional<int>& degree = request.degree(axis);
    const bool is_open_shard = axis == Axis::shard && span != ShardSpan::none;
    if (degree && *degree != 1) {
      given.push_back(format("{} {}", name_of(axis), *degree));
    } else if (!degree && (axis == Axis::replicate || is_open_shard)) {
      given.push_back(format(
          "{} {}", name_of(axis), open_degree(axis, span, replicate_is_open)));
    }
  }
  return given.empty() ? "1 along every axis" : join(given, ", ");
}

std::string describe_sharding(const TrainingRequest& request) {
  if (!request.sharding || request.sharding->span == ShardSpan::none)
    return "none: every rank has a replica";
  const ShardingRequest& sharding = *request.sharding;
  std::string text;
  if (!sharding.shard_parameters) {
    text = sharding.reduce_every_backward
        ? "optimizer state and gradients (ZeRO stage 2)"
        : "optimizer state (ZeRO stage 1)";
  } else if (!sharding.reshard_after_forward) {
    text =
        "optimizer state, gradients and parameters; parameters stay unsharded "
        "from a forward to the end of its backward";
  } else if (sharding.reshard_group_size > 1) {
    text = format(
        "optimizer state, gradients and parameters; between forward and "
        "backward parameters are sharded over {} ranks",
        sharding.reshard_group_size);
  } else {
    text =
        "optimizer state, gradients and parameters; parameters are resharded "
        "after each use (ZeRO stage 3)";
  }
  if (!sharding.prefetch_forward)
    text += "; forwards do not gather units ahead";
  if (!sharding.prefetch_backward)
    text += "; backwards do not gather units ahead";
  const bool is_on_disk = sharding.disk &&
      sharding.disk->keeps_optimizer_state && sharding.disk->keeps_parameters;
  if (sharding.cpu_offload && !is_on_disk)
    text += "; shards stay in host memory";
  if (sharding.make_on_rank_0) text += "; only rank 0 makes initial values";
  if (sharding.read_on_rank_0) text += "; only rank 0 reads weights";
  if (sharding.ignored_modules) {
    text += format(
        "; modules that match \"{}\" are not", *sharding.ignored_modules);
  }
  return text;
}

std::string describe_disk(const TrainingRequest& request) {
  if (!request.sharding || !request.sharding->disk) return {};
  const DiskRequest& disk = *request.sharding->disk;
  std::vector<std::string> parts;
  if (disk.keeps_optimizer_state) {
    const bool has_parameters =
        disk.keeps_parameters && disk.parameter_directory.empty();
    parts.push_back(format(
        "optimizer state{} gradients in {}",
        has_parameters ? ", parameters and" : " and",
        disk.directory));
  }
  const bool is_apart =
      !disk.keeps_optimizer_state || !disk.parameter_directory.empty();
  if (disk.keeps_parameters && is_apart) {
    parts.push_back(format(
        "parameters in {}",
        disk.parameter_directory.empty() ? disk.directory
                                         : disk.parameter_directory));
  }
  if (disk.elements_in_memory) {
    parts.push_back(format(
        "{} elements of parameters in memory", *disk.elements_in_memory));
  }
  if (disk.elements_ahead > 0)
    parts.push_back(format("{} elements read ahead", disk.elements_ahead));
  if (disk.buffer_count > 0)
    parts.push_back(format("{} buffers", disk.buffer_count));
  if (disk.buffer_elements > 0)
    parts.push_back(format("buffers of {} elements", disk.buffer_elements));
  if (!disk.overlaps_reads) parts.emplace_back("steps wait for reads");
  if (!disk.overlaps_writes) parts.emplace_back("steps wait for writes");
  if (disk.steps_in_backward) parts.emplace_back("backward steps");
  if (disk.may_be_in_memory) parts.emplace_back("the files may be in memory");
  return join(parts, "; ");
}

std::string describe_policy(const ModuleSelection& selection) {
  if (selection.custom) return "modules that the program's function chooses";
  const WrapPolicy& policy = selection.policy;
  switch (policy.kind) {
    case WrapPolicy::Kind::containers:
      return "elements of the outermost Sequentials and ModuleLists";
    case WrapPolicy::Kind::none:
      break;
    case WrapPolicy::Kind::classes:
      return format("modules of class {}", join(policy.class_names, ", "));
    case WrapPolicy::Kind::remainder:
      if (policy.min_num_params <= 0) break;
      return format(
          "modules with at least {} parameters besides "
          "those of chosen children",
          policy.min_num_params);
    case WrapPolicy::Kind::size:
      return format(
          "modules with more than {} parameters", policy.min_num_params);
    case WrapPolicy::Kind::attention:
      return "modules of attention";
  }
  return "no module: the model is one unit";
}

std::string describe_recomputation(const TrainingRequest& request) {
  if (!request.recomputation) return "none";
  const RecomputationRequest& recomputation = *request.recomputation;
  std::string text = describe_policy(recomputation.modules);
  if (recomputation.modules_together > 1)
    text += format(", {} at a time", recomputation.modules_together);
  if (recomputation.num_modules) {
    text += format(", the first {} of each rank", *recomputation.num_modules);
  }
  if (recomputation.options.offload_inputs)
    text += "; inputs stay in host memory";
  return text;
}

std::string describe_pipeline(const PipelineRequest& pipeline) {
  std::vector<std::string> parts;
  if (pipeline.num_micro_batches)
    parts.push_back(format("{} micro-batches", *pipeline.num_micro_batches));
  if (pipeline.layers_per_chunk)
    parts.push_back(
        format("interleaved stages of {} layers", *pipeline.layers_per_chunk));
  if (pipeline.layers_of_last_rank)
    parts.push_back(
        format("{} layers on the last rank", *pipeline.layers_of_last_rank));
  if (parts.empty()) return {};
  return join(parts, ", ") + ", unless PipelineOptions say otherwise";
}

std::string_view dtype_name(FloatType type) {
  constexpr std::array<std::string_view, 3> names{"fp32", "fp16", "bf16"};
  return names[static_cast<std::size_t>(type)];
}

std::string describe_precision(const PrecisionRequest& precision) {
  std::string text = precision.mixed_precision == "no"
      ? "as the parameters are"
      : format("autocast to {}", precision.mixed_precision);
  const auto add = [&](std::string_view what, std::optional<FloatType> type) {
    if (type) text += format("; {} in {}", what, dtype_name(*type));
  };
  add("parameters gathered", precision.sharded.param_dtype);
  add("gradients reduced", precision.sharded.reduce_dtype);
  add("buffers", precision.sharded.buffer_dtype);
  add("outputs", precision.sharded.output_dtype);
  if (precision.master_weights)
    text += "; fp32 master weights of parameters in bf16 and fp16";
  return text;
}

std::string describe_section(
    const std::optional<DeepSpeedSection>& section,
    std::string_view function) {
  if (!section) return "the program's";
  return format("{} {}, made by {}", section->type, section->params, function);
}

std::string describe_step(const StepRequest& step) {
  return format(
      "{}, {}{}",
      step.gradient_accumulation_steps
          ? format(
                "gradients accumulate over {} micro-steps",
                *step.gradient_accumulation_steps)
          : std::string("accumulation as the program says"),
      step.gradient_clipping
          ? format("clipped to a norm of {}", *step.gradient_clipping)
          : std::string("clipping as the program says"),
      step.weighs_by_items ? "" : ", micro-steps of equal weight");
}

std::string describe_checkpoints(const CheckpointRequest& checkpoints) {
  std::vector<std::string> parts;
  if (!checkpoints.saves_optimizers)
    parts.emplace_back("saved without optimizers and schedules");
  if (!checkpoints.loads_optimizers)
    parts.emplace_back("loaded without optimizers and schedules");
  return join(parts, ", ");
}

std::string describe_sequence(const SequenceRequest& sequence) {
  std::string text = "ranks exchange ";
  if (sequence.exchange_heads) {
    text += "attention heads";
  } else {
    text += "keys and values of ";
    text += sequence.rotate_blocks ? "one rank after another" : "all at once";
  }
  if (sequence.length)
    text += format("; all of {} positions", *sequence.length);
  return text;
}

std::string explain_split_layers(const TrainingRequest& request) {
  std::string text = line(
      "split layers",
      request.infers_plan && !request.parallelize_plan
          ? "as infer_parallelize_plan() chooses, for models without a plan"
          : "as parallelize_plan says");
  if (request.divides_sequences)
    text += line("sequences", "divided between split layers");
  if (request.engine == Engine::megatron_lm) {
    text += line(
        "experts",
        request.experts.splits_over_tensor
            ? "each is split by the ranks along tensor"
            : "each rank along tensor computes whole ones");
  }
  return text;
}

}  // namespace

std::string explain(const TrainingRequest& request) {
  std::string text = line(
      "engine",
      request.engine == Engine::none
          ? "none"
          : format("{} settings", possessive(request.engine)));
  text += line("degrees", describe_degrees(request));
  text += line("sharding", describe_sharding(request));
  text += line("on disk", describe_disk(request));
  if (request.sharding && request.sharding->span != ShardSpan::none) {
    text += line("wrap policy", describe_policy(request.sharding->units));
    const auto& leaves = request.sharding->units.policy.leaf_class_names;
    if (!leaves.empty()) {
      text += line(
          "whole units",
          format(
              "modules of class {} with everything in them",
              join(leaves, ", ")));
    }
  }
  if (request.degree(Axis::tensor).value_or(1) > 1)
    text += explain_split_layers(request);
  if (request.degree(Axis::context).value_or(1) > 1)
    text += line("sequences", describe_sequence(request.sequence));
  text += line("pipeline", describe_pipeline(request.pipeline));
  text += line("recomputation", describe_recomputation(request));
  text += line("step", describe_step(request.step));
  text += line("precision", describe_precision(request.precision));
  text += line(
      "optimizer",
      describe_section(request.optimizer, "optimizer_from_deepspeed()"));
  text += line(
      "scheduler",
      describe_section(request.scheduler, "scheduler_from_deepspeed()"));
  text += line("checkpoints", describe_checkpoints(request.checkpoints));
  for (const auto* const settings : {&request.ignored, &request.overruled}) {
    for (const IgnoredSetting& setting : *settings) {
      text += line(
          "ignored",
          format(
              "{}{}: no counterpart here{}",
              setting.name,
              setting.origin.empty() ? "" : format(" ({})", setting.origin),
              setting.instead.empty() ? "" : format("; {}", setting.instead)));
    }
  }
  for (const std::string& complaint : request.complaints)
    text += line("error", complaint);
  return text;
}

}  // namespace accelerate::detail
