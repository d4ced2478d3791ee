#include "planning/layout/layout_text.h"

#include <nlohmann/json.hpp>

#include "base/text/text.h"

namespace accelerate::detail {

std::string_view mixed_precision_of(FloatType precision) {
  switch (precision) {
    case FloatType::fp16:
      return "fp16";
    case FloatType::bf16:
      return "bf16";
    case FloatType::fp32:
      break;
  }
  return "no";
}

namespace {

// Settings that only the program itself can make, as comments.
std::string program_notes(const TrainingLayout& layout) {
  std::string text;
  if (layout.pipeline > 1) {
    text += format(
        "# In the program: PipelineOptions{{.schedule = "
        "parse_pipeline_schedule(\"{}\"), .num_chunks = {}, "
        ".num_micro_batches = {}}}\n",
        name_of(layout.schedule),
        layout.num_chunks,
        layout.num_micro_batches);
  }
  if (layout.recomputes) {
    text +=
        "# In the program: ParallelOptions{.activation_checkpointing = "
        "ActivationCheckpointingOptions()}\n";
  }
  text += format(
      "# In the program: batches of {} samples for each rank that reads "
      "different data\n",
      layout.pipeline > 1 ? layout.micro_batch * layout.num_micro_batches
                          : layout.micro_batch);
  return text;
}

}  // namespace

std::string layout_config(
    const TrainingLayout& layout,
    const LayoutPlanOptions& options) {
  const int per_node = options.cluster->ranks_per_node;
  const int nodes = (options.num_ranks + per_node - 1) / per_node;
  std::string text = format(
      "# Written by accelerate-cpp plan for {} ranks: {}\n",
      options.num_ranks,
      layout.describe());
  text += program_notes(layout);
  const bool is_sharded =
      layout.sharding != LayoutSharding::none || layout.on_disk;
  const bool is_on_host = options.cluster->measured.shared_processors > 0;
  text += format(
      "compute_environment: LOCAL_MACHINE\ndistributed_type: {}\n"
      "num_machines: {}\nnum_processes: {}\nmixed_precision: '{}'\n",
      is_sharded                   ? "DEEPSPEED"
          : options.num_ranks == 1 ? "'NO'"
          : is_on_host             ? "MULTI_CPU"
                                   : "MULTI_GPU",
      nodes,
      options.num_ranks,
      mixed_precision_of(options.precision));
  if (is_on_host) text += "use_cpu: true\n";
  if (is_sharded) {
    text += format(
        "deepspeed_config:\n  zero_stage: {}\n",
        static_cast<int>(
            layout.on_disk ? LayoutSharding::parameters : layout.sharding));
    for (const char* const what : {"optimizer", "param"}) {
      if (!layout.on_disk) break;
      text += format(
          "  offload_{}_device: nvme\n  offload_{}_nvme_path: {}\n",
          what,
          what,
          nlohmann::json(options.offload_directory).dump());
    }
  }
  if (layout.pipeline == 1) {
    text += format(
        "{}gradient_accumulation_steps: {}\n",
        is_sharded ? "  " : "",
        layout.num_micro_batches);
  }
  if (options.num_ranks == 1) return text;
  text += "parallelism_config:\n";
  const auto add = [&](const char* name, int degree) {
    text += format("  parallelism_config_{}_size: {}\n", name, degree);
  };
  add("dp_replicate", layout.replicate);
  add("dp_shard", layout.shard);
  add("ep", layout.expert);
  add("cp", layout.context);
  add("tp", layout.tensor);
  add("pp", layout.pipeline);
  return text;
}

}  // namespace accelerate::detail
