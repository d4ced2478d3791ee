#include "parallel/plan.h"

#include <string>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/mesh.h"
#include "parallel/activation_checkpointing.h"
#include "parallel/large_blocks.h"
#include "parallel/master_weights.h"
#include "parallel/other_words.h"
#include "parallel/replicate.h"
#include "parallel/shard_options.h"

namespace accelerate::detail {

namespace {

using Validate = std::optional<std::string> (*)(const PlanRequest&);
using Make =
    std::unique_ptr<Strategy> (*)(const Mesh&, const TechniqueOptions&);

struct StrategyRow {
  Axis axis;
  std::string_view option;  // the launcher's name for the degree
  std::optional<int> ParallelOptions::*degree;
  Validate validate;  // null: it always can
  Make make;
  /// This axis, where it is split too, does the technique's work as well.
  std::optional<Axis> yields_to = std::nullopt;
};

std::optional<std::string> check_replicate(const PlanRequest& request) {
  return validate_replicate(request.parallel);
}

std::unique_ptr<Strategy> replicate(
    const Mesh& mesh,
    const TechniqueOptions& options) {
  return make_replicate(mesh, options.parallel);
}

std::unique_ptr<Strategy> shard(
    const Mesh& mesh,
    const TechniqueOptions& options) {
  return make_shard(mesh, options.shard);
}

// What this version cannot do yet refuses here, before anything is touched.
template <Axis axis>
std::optional<std::string> validate_absent(const PlanRequest&) {
  return concat(
      "[parallel] ",
      name_of(axis),
      " was asked for, which this version does not have; set ",
      name_of(axis),
      " to 1");
}

// The only list of techniques. Order of rows is order of application.
constexpr StrategyRow kStrategies[] = {
    {Axis::pipeline,
     "parallelism_config_pp_size",
     &ParallelOptions::pipeline,
     &validate_absent<Axis::pipeline>,
     nullptr},
    {Axis::tensor,
     "parallelism_config_tp_size",
     &ParallelOptions::tensor,
     &validate_absent<Axis::tensor>,
     nullptr},
    {Axis::context,
     "parallelism_config_cp_size",
     &ParallelOptions::context,
     &validate_absent<Axis::context>,
     nullptr},
    {Axis::shard,
     "parallelism_config_dp_shard_size",
     &ParallelOptions::shard,
     nullptr,
     &shard},
    {Axis::replicate,
     "parallelism_config_dp_replicate_size",
     &ParallelOptions::replicate,
     &check_replicate,
     &replicate,
     Axis::shard},
};

std::optional<int> asked_degree(
    const StrategyRow& row,
    const ParallelOptions& options,
    const Settings& settings) {
  if (const auto degree = options.*row.degree) return degree;
  if (const auto degree = settings.integer(row.option))
    return static_cast<int>(*degree);
  return std::nullopt;
}

}  // namespace

namespace {

using Degrees = std::array<int, kNumAxes>;

int& at_axis(Degrees& degrees, Axis axis) {
  return degrees[static_cast<std::size_t>(axis)];
}

// What the open degrees, if any, are filled up with.
void fill_up(
    Degrees& degrees,
    bool replicate_is_open,
    bool shard_is_open,
    ShardSpan span,
    const PlanRequest& request) {
  int others = 1;
  for (const int degree : degrees) others *= degree;
  if (others < 1 || request.num_ranks % others != 0) return;
  int left = request.num_ranks / others;
  if (shard_is_open) {
    const bool is_hybrid = span == ShardSpan::machine && replicate_is_open &&
        left % request.num_local_ranks == 0;
    at_axis(degrees, Axis::shard) = is_hybrid ? request.num_local_ranks : left;
    left /= at_axis(degrees, Axis::shard);
  }
  if (replicate_is_open) at_axis(degrees, Axis::replicate) = left;
}

}  // namespace

ParallelPlan make_plan(
    const PlanRequest& said,
    const Settings& settings,
    const Environment& environment) {
  ParallelPlan plan;
  Degrees& degrees = plan.degrees;
  degrees.fill(1);
  std::vector<std::string> complaints;
  PlanRequest request = said;
  try {
    request.parallel = in_own_words(said.parallel, settings);
  } catch (const ConfigError& error) {
    complaints.emplace_back(error.what());
  }
  std::optional<ShardRequest> sharding;
  try {
    sharding = read_shard_request(
        request.parallel, settings, environment, request.mixed_precision);
  } catch (const ConfigError& error) {
    complaints.emplace_back(error.what());
  }
  const ShardSpan span = sharding ? sharding->span : ShardSpan::none;
  bool replicate_is_open = false, shard_is_open = false;
  for (const StrategyRow& row : kStrategies) {
    const auto degree = asked_degree(row, request.parallel, settings);
    // The launcher's table has 1 for who does not say.
    const bool is_said = (request.parallel.*row.degree).has_value() ||
        settings.is_given(row.option);
    if (degree && *degree < 1) {
      complaints.push_back(concat(
          "[parallel] ",
          name_of(row.axis),
          " is ",
          *degree,
          "; a degree is at least 1"));
    } else if (row.axis == Axis::replicate && !degree) {
      replicate_is_open = true;
    } else if (row.axis == Axis::shard && !is_said && span != ShardSpan::none) {
      shard_is_open = true;
    } else {
      at_axis(degrees, row.axis) = degree.value_or(1);
    }
  }
  fill_up(degrees, replicate_is_open, shard_is_open, span, request);
  for (const StrategyRow& row : kStrategies) {
    if (at_axis(degrees, row.axis) == 1 || row.validate == nullptr) continue;
    if (auto complaint = row.validate(request))
      complaints.push_back(*std::move(complaint));
  }
  if (auto complaint = mesh_complaint(degrees, request.num_ranks)) {
    complaints.push_back(*std::move(complaint));
  }
  if (sharding) {
    const int neighbours = sharding->options.neighbours;
    const int shards = at_axis(degrees, Axis::shard);
    if (neighbours < 0 || (neighbours > 1 && shards % neighbours != 0)) {
      complaints.push_back(concat(
          "[parallel] reshard_after_forward is ",
          neighbours,
          " ranks, which do not divide the ",
          shards,
          " that share the parameters; give a divisor, true or false"));
    }
    if (sharding->options.offloads_parts && shards == 1 &&
        !request.device.is_cpu()) {
      complaints.push_back(concat(
          "[parallel] offload to the CPU was asked for on ",
          request.device.str(),
          ", but nothing is split, so there are no parts to keep there; shard "
          "over several ranks, or leave it out"));
    }
    // All of them: as if nothing was said.
    if (neighbours == shards) sharding->options.neighbours = 0;
  }
  if (sharding && span == ShardSpan::none &&
      at_axis(degrees, Axis::shard) > 1) {
    complaints.push_back(concat(
        "[parallel] shard is ",
        at_axis(degrees, Axis::shard),
        ", but the strategy splits nothing (NO_SHARD, or ZeRO stage 0); "
        "correct one of them"));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));

  plan.techniques.parallel = request.parallel;
  plan.techniques.master_weights = request.master_weights;
  if (sharding) {
    plan.techniques.shard = std::move(sharding->options);
    // Who has said how the heap works is left alone.
    plan.techniques.shard.keeps_large_blocks =
        request.device.is_cpu() && !environment.has("MALLOC_MMAP_THRESHOLD_");
    plan.techniques.activation_checkpointing =
        std::move(sharding->activation_checkpointing);
    plan.gradient_accumulation_steps = sharding->gradient_accumulation_steps;
    plan.gradient_clipping = sharding->gradient_clipping;
    plan.deepspeed_config = std::move(sharding->deepspeed_config);
    plan.makes_on_rank_0 = sharding->makes_on_rank_0;
    plan.reads_on_rank_0 = sharding->reads_on_rank_0;
    plan.ignored = std::move(sharding->ignored);
  }
  if (request.parallel.activation_checkpointing) {
    plan.techniques.activation_checkpointing =
        request.parallel.activation_checkpointing;
  }
  plan.techniques.shard.master_weights = request.master_weights;
  plan.techniques.shard.broadcast_buffers =
      request.parallel.replicate_options.broadcast_buffers;
  return plan;
}

std::vector<std::unique_ptr<Strategy>> make_strategies(
    const Mesh& mesh,
    const TechniqueOptions& options) {
  std::vector<std::unique_ptr<Strategy>> strategies;
  // First, so that after a backward it comes last: ranks agree in the model's
  // own dtype.
  if (options.master_weights && mesh.degree(Axis::shard) == 1)
    strategies.push_back(make_master_weights());
  for (const StrategyRow& row : kStrategies) {
    const bool yields = row.yields_to && mesh.degree(*row.yields_to) > 1;
    if (mesh.degree(row.axis) > 1 && !yields)
      strategies.push_back(row.make(mesh, options));
  }
  // After parts are cut.
  if (options.shard.keeps_large_blocks)
    strategies.push_back(make_keep_blocks());
  if (options.activation_checkpointing) {
    strategies.push_back(
        make_activation_checkpointing(*options.activation_checkpointing));
  }
  return strategies;
}

}  // namespace accelerate::detail
