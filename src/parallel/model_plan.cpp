#include <optional>
#include <utility>

#include "parallel/plan.h"
#include "parallel/shard_options.h"

namespace accelerate::detail {

namespace {

int degree_of(const ParallelPlan& plan, Axis axis) {
  return plan.degrees[static_cast<std::size_t>(axis)];
}

// Copies and shards of a model whose words are its own: those of the other
// models where they serve.
void choose_degrees(
    ParallelOptions& parallel,
    ShardSpan span,
    const ParallelPlan& base,
    int num_local_ranks) {
  const int copies = degree_of(base, Axis::replicate);
  const int shards = degree_of(base, Axis::shard);
  const int ranks = copies * shards;
  switch (span) {
    case ShardSpan::none:
      parallel.replicate = ranks;
      parallel.shard = 1;
      return;
    case ShardSpan::all:
      parallel.shard = shards > 1 ? shards : ranks;
      break;
    case ShardSpan::machine:
      if (copies > 1 && shards > 1) {
        parallel.shard = shards;
      } else {
        parallel.shard = ranks % num_local_ranks == 0 ? num_local_ranks : ranks;
      }
      break;
  }
  parallel.replicate = ranks / *parallel.shard;
}

}  // namespace

ParallelPlan make_model_plan(
    const ModelOptions& options,
    const PlanSources& sources,
    const ParallelPlan& base) {
  PlanRequest request = sources.request;
  ParallelOptions& parallel = request.parallel;
  // Their degrees are in `base`.
  parallel.parallelism_config.reset();
  parallel.pipeline = degree_of(base, Axis::pipeline);
  parallel.tensor = degree_of(base, Axis::tensor);
  parallel.context = degree_of(base, Axis::context);
  const bool has_words = options.fully_sharded || options.deepspeed;
  if (has_words) {
    parallel.fully_sharded = options.fully_sharded;
    parallel.deepspeed = options.deepspeed;
    parallel.megatron_lm.reset();
    parallel.activation_checkpointing.reset();
  }
  if (options.replicate_options)
    parallel.replicate_options = *options.replicate_options;
  if (options.activation_checkpointing)
    parallel.activation_checkpointing = options.activation_checkpointing;
  if (options.master_weights) request.master_weights = *options.master_weights;

  if (options.replicate || options.shard) {
    const int ranks =
        degree_of(base, Axis::replicate) * degree_of(base, Axis::shard);
    // Where it does not come out even, the grid complains.
    const auto rest = [&](std::optional<int> degree) -> std::optional<int> {
      if (!degree || *degree < 1 || ranks % *degree != 0) return std::nullopt;
      return ranks / *degree;
    };
    parallel.replicate =
        options.replicate ? options.replicate : rest(options.shard);
    parallel.shard = options.shard ? options.shard : rest(options.replicate);
  } else if (has_words) {
    parallel.shard.reset();
    const auto sharding = read_shard_request(
        parallel,
        sources.settings,
        sources.environment,
        request.mixed_precision);
    choose_degrees(parallel, sharding->span, base, request.num_local_ranks);
  } else {
    parallel.replicate = degree_of(base, Axis::replicate);
    parallel.shard = degree_of(base, Axis::shard);
  }
  return make_plan(request, sources.settings, sources.environment);
}

}  // namespace accelerate::detail
