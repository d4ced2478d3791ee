// Recorded meshes, split layers and split sequences.
#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "engines/parallelism.h"
#include "engines/request/read_request.h"
#include "oracle/departures.h"
#include "oracle/oracle.h"
#include "oracle/parallelism/parallelism.h"
#include "oracle/plugins/plugins.h"
#include "parallel/plan/plan.h"

namespace accelerate::oracle {

namespace topic_parallelism {

at::Tensor values(
    const std::vector<std::int64_t>& shape,
    std::int64_t seed,
    double scale) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return at::arange(count, at::kLong)
      .mul(7)
      .add(13 * seed)
      .remainder(31)
      .sub(15)
      .to(at::kDouble)
      .mul(scale / 16)
      .to(at::kFloat)
      .view(shape);
}

bool is_kind(const Json& input, const char* kind) {
  return input.at("kind") == kind;
}

Json validate(const Json& input) {
  ParallelismConfig config =
      topic_plugins::parallelism_config_of(input.at("args"));
  for (const Json& handler : input.at("handlers"))
    if (handler == "cp") config.cp_comm_strategy = "allgather";
  detail::RequestSources sources;
  sources.parallel.parallelism_config = config;
  sources.parallel.parallelize_plan = ParallelizePlan{};
  const detail::TrainingRequest request =
      detail::read_training_request(sources);
  (void)detail::make_plan(
      {.training = request, .num_ranks = input.at("num_processes")});
  const auto found = detail::resolve_parallelism(config, sources.settings);
  return {
      {"sizes",
       {{"dp_replicate_size", *found.dp_replicate_size},
        {"dp_shard_size", *found.dp_shard_size},
        {"tp_size", *found.tp_size},
        {"cp_size", *found.cp_size}}},
      {"warnings", Json(detail::names_of(request.ignored))}};
}

// ring_attention() returns the output alone.
bool outputs_only(const Json& input, const Json&, Json& expected) {
  if (!is_kind(input, "context_parallel") || !expected.contains("ranks"))
    return false;
  for (Json& rank : expected.at("ranks")) rank.erase("local_lse");
  return true;
}

// Accelerate refuses these axes for unsharded replicas, on CPUs, and without an
// engine.
bool any_axes_anywhere(const Json&, const Json& found, Json& expected) {
  if (found.contains("error") || !expected.contains("error")) return false;
  const std::string message = expected.at("message");
  if (message.find("is only compatible DistributedType") == message.npos &&
      message.find("cannot be used with pure data parallelism") ==
          message.npos) {
    return false;
  }
  expected = found;
  return true;
}

bool patterns_match(const Json& input, const Json& found, Json& expected) {
  if (!is_kind(input, "tensor_parallel") || !found.contains("error"))
    return false;
  for (const Json& entry : input.at("plan")) {
    if (entry[0] != "nowhere") continue;
    expected = found;
    return true;
  }
  return false;
}

// A bias that is added to a gathered product is not split.
bool gathered_biases_are_whole(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!is_kind(input, "tensor_parallel") || !found.contains("local"))
    return false;
  bool applies = false;
  for (std::size_t rank = 0; rank < expected.at("local").size(); ++rank) {
    for (std::size_t i = 0; i < expected.at("local")[rank].size(); ++i) {
      Json& theirs = expected.at("local")[rank][i];
      const Json& ours = found.at("local")[rank][i];
      const std::string name = theirs[0];
      for (const Json& entry : input.at("plan")) {
        if (entry[0].get<std::string>() + ".bias" != name ||
            entry[1].value("output_layouts", "") != "replicate") {
          continue;
        }
        applies |= theirs != ours;
        theirs = ours;
      }
    }
  }
  return applies;
}

// Accelerate writes small shares in a unit that it cannot read.
bool small_models_are_divided(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!is_kind(input, "prepare_pippy") || input.at("split_points") != "auto")
    return false;
  for (std::size_t rank = 0; rank < expected.at("ranks").size(); ++rank) {
    if (!expected["ranks"][rank].contains("error") ||
        found.at("ranks")[rank].contains("error")) {
      return false;
    }
  }
  expected = found;
  return true;
}

}  // namespace topic_parallelism

Json run_parallelism(const Json& input) {
  using namespace topic_parallelism;
  const std::string kind = input.at("kind");
  if (kind == "mesh") return topic_plugins::mesh_of(input);
  if (kind == "validate") return validate(input);
  if (kind == "tensor_parallel") return split_layers(input);
  if (kind == "context_parallel") return split_sequences(input);
  if (kind == "schedule") return order_schedule(input);
  if (kind == "pipeline_step") return pipeline_step(input);
  if (kind == "prepare_pippy") return divide_for_inference(input);
  throw NotBuilt(kind);
}

Departures parallelism_departures() {
  using namespace topic_parallelism;
  return Departures(
      {},
      {{"attention returns its output without the log-sum-exp", &outputs_only},
       {"axes may be combined in any way and on any device",
        &any_axes_anywhere},
       {"a bias that is added to a gathered product stays whole",
        &gathered_biases_are_whole},
       {"a pattern that matches no module is an error", &patterns_match},
       {"models below 1 KB are divided, too", &small_models_are_divided},
       {"forwards of 1F1B are printed with the numbers that are computed",
        &forwards_are_numbered_from_0},
       {"schedules take any number of micro-batches",
        &any_number_of_micro_batches}});
}

}  // namespace accelerate::oracle
