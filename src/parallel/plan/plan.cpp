#include "parallel/plan/plan.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/mesh.h"
#include "parallel/attention/attention_layers.h"
#include "parallel/expert/experts.h"
#include "parallel/float8/float8.h"
#include "parallel/float8/float8_attention.h"
#include "parallel/float8/ms_amp.h"
#include "parallel/plan/activation_checkpointing.h"
#include "parallel/plan/master_weights.h"
#include "parallel/replicate/replicate.h"
#include "parallel/shard/shard_options.h"
#include "parallel/tensor/tensor.h"

namespace accelerate::detail {

namespace {

struct Technique {
  std::string_view name;  // the strategy's name, also in checkpoints
  bool (*is_wanted)(const ParallelPlan&);
  std::unique_ptr<Strategy> (*make)(const Mesh&, const TechniqueOptions&);
  /// Whether this model needs it; null: every model does.
  bool (*is_for)(const ParallelPlan&, const torch::nn::Module&) = nullptr;
};

// Ranks along context hold the same parameters, and gradients of different
// tokens.
bool has_replicas(const ParallelPlan& plan) {
  return plan.degree(Axis::replicate) > 1 || plan.degree(Axis::context) > 1;
}

// Whether one rank or several have shards. One rank has them where they lie in
// files.
bool has_shards(const ParallelPlan& plan) {
  return plan.degree(Axis::shard) > 1 || plan.techniques.shard.disk;
}

// The only list of techniques, in the order of application.
constexpr Technique kTechniques[] = {
    // The other techniques divide, copy and average what this one leaves.
    {"tensor",
     [](const ParallelPlan& plan) {
       return plan.degree(Axis::tensor) > 1 &&
           (plan.techniques.parallelize_plan || plan.techniques.infers_plan);
     },
     [](const Mesh& mesh, const TechniqueOptions& options) {
       return make_tensor(
           mesh,
           options.parallelize_plan,
           options.divides_sequences,
           options.whole_model);
     }},
    // Needed even if nothing is divided: layers learn whose tokens they
    // balance.
    {"experts",
     [](const ParallelPlan& plan) {
       return plan.degree(Axis::expert) > 1 || plan.degree(Axis::tensor) > 1 ||
           plan.degree(Axis::shard) > 1 || has_replicas(plan);
     },
     [](const Mesh& mesh, const TechniqueOptions& options) {
       return make_experts(mesh, options.experts);
     },
     // It warns if there is nothing to divide.
     [](const ParallelPlan& plan, const torch::nn::Module& model) {
       return plan.degree(Axis::expert) > 1 || has_experts(model);
     }},
    // Keeps gradients that the others leave, and gives them back first.
    {"ms_amp",
     [](const ParallelPlan& plan) {
       return plan.techniques.float8 &&
           std::holds_alternative<MSAMPRecipeKwargs>(
                  plan.techniques.float8->recipe);
     },
     [](const Mesh& mesh, const TechniqueOptions& options) {
       return make_ms_amp(
           mesh,
           std::get<MSAMPRecipeKwargs>(options.float8->recipe),
           options.replicate.bucket_bytes);
     }},
    // Being early here means coming late after a backward, so gradients are
    // averaged in the model's own dtype. Shards already are in full precision.
    {"master_weights",
     [](const ParallelPlan& plan) {
       return plan.techniques.master_weights && !has_shards(plan);
     },
     [](const Mesh&, const TechniqueOptions&) {
       return make_master_weights();
     }},
    {"shard",
     [](const ParallelPlan& plan) {
       return has_shards(plan) || plan.would_shard;
     },
     [](const Mesh& mesh, const TechniqueOptions& options) {
       ShardOptions shard = options.shard;
       if (options.float8)
         shard.float8 = float8_gather_of(*options.float8, options.whole_model);
       return mesh.degree(Axis::shard) > 1 || shard.disk
           ? make_shard(mesh, shard)
           : make_shard_of_one(shard);
     }},
    {"context",
     [](const ParallelPlan& plan) { return plan.degree(Axis::context) > 1; },
     [](const Mesh&, const TechniqueOptions&) { return make_context(); }},
    // If a model is sharded, `shard` also averages gradients over its replicas.
    {"replicate",
     [](const ParallelPlan& plan) {
       return has_replicas(plan) && !has_shards(plan);
     },
     [](const Mesh& mesh, const TechniqueOptions& options) {
       return make_replicate(mesh, options.replicate);
     }},
    // Watches the weights that the others have placed.
    {"float8",
     [](const ParallelPlan& plan) {
       return plan.techniques.float8.has_value();
     },
     [](const Mesh& mesh, const TechniqueOptions& options) {
       return make_float8(mesh, *options.float8, options.whole_model);
     }},
    {"float8_attention",
     [](const ParallelPlan& plan) {
       return plan.techniques.float8 &&
           plan.techniques.float8->attention != Float8Attention::none;
     },
     [](const Mesh& mesh, const TechniqueOptions& options) {
       return make_float8_attention(mesh, *options.float8);
     }},
    {"activation_checkpointing",
     [](const ParallelPlan& plan) {
       return plan.techniques.activation_checkpointing.has_value();
     },
     [](const Mesh&, const TechniqueOptions& options) {
       return make_activation_checkpointing(
           *options.activation_checkpointing, options.whole_model);
     }},
};

struct DegreeRow {
  Axis axis;
  /// Returns what is wrong with a degree above 1; null if it is always valid.
  std::optional<std::string> (*complain)(const PlanRequest&) = nullptr;
};

std::optional<std::string> complain_of_plan(const PlanRequest& request) {
  if (request.training.parallelize_plan || request.training.infers_plan)
    return std::nullopt;
  return "[parallel] tensor was asked for, but nothing says which layers are "
         "split; give ParallelOptions::parallelize_plan, or set tensor to 1";
}

constexpr DegreeRow kDegrees[] = {
    {Axis::pipeline},
    {Axis::tensor, &complain_of_plan},
    {Axis::context},
    {Axis::expert},
    {Axis::shard},
    {Axis::replicate},
};

int& at_axis(Degrees& degrees, Axis axis) {
  return degrees[static_cast<std::size_t>(axis)];
}

// Assigns the remaining ranks to the degrees left unset.
void fill_up(
    Degrees& degrees,
    bool replicate_is_open,
    bool shard_is_open,
    ShardSpan span,
    const PlanRequest& request) {
  int others = 1;
  for (const int degree : dense_grid(degrees)) others *= degree;
  if (others < 1 || request.num_ranks % others != 0) return;
  int left = request.num_ranks / others;
  if (shard_is_open) {
    const bool is_hybrid = span == ShardSpan::node && replicate_is_open &&
        left % request.num_local_ranks == 0;
    at_axis(degrees, Axis::shard) = is_hybrid ? request.num_local_ranks : left;
    left /= at_axis(degrees, Axis::shard);
  }
  if (replicate_is_open) at_axis(degrees, Axis::replicate) = left;
}

// Returns the requested degrees, 1 by default; replicate, or shard if sharding
// was requested without a number, takes all remaining ranks. Adds what is wrong
// with the degrees to `complaints`.
Degrees choose_degrees(
    const PlanRequest& request,
    std::vector<std::string>& complaints) {
  const TrainingRequest& training = request.training;
  const ShardSpan span =
      training.sharding ? training.sharding->span : ShardSpan::none;
  Degrees degrees;
  degrees.fill(1);
  bool replicate_is_open = false, shard_is_open = false;
  for (const DegreeRow& row : kDegrees) {
    const std::optional<int>& degree = training.degree(row.axis);
    if (degree && *degree < 1) {
      complaints.push_back(format(
          "[parallel] the degree {} must be at least 1, but is {}",
          name_of(row.axis),
          *degree));
    } else if (row.axis == Axis::replicate && !degree) {
      replicate_is_open = true;
    } else if (row.axis == Axis::shard && !degree && span != ShardSpan::none) {
      shard_is_open = true;
    } else {
      at_axis(degrees, row.axis) = degree.value_or(1);
    }
  }
  fill_up(degrees, replicate_is_open, shard_is_open, span, request);
  for (const DegreeRow& row : kDegrees) {
    const bool is_added = std::ranges::any_of(
        request.added,
        [&](const AddedTechnique& added) { return added.axis == row.axis; });
    if (at_axis(degrees, row.axis) == 1 || row.complain == nullptr || is_added)
      continue;
    if (auto complaint = row.complain(request))
      complaints.push_back(*std::move(complaint));
  }
  if (auto complaint = mesh_complaint(degrees, request.num_ranks))
    complaints.push_back(*std::move(complaint));
  return degrees;
}

// A single process shards nothing, whatever was requested.
bool would_shard_if_several(const PlanRequest& request) {
  const TrainingRequest& training = request.training;
  return request.num_ranks == 1 && training.sharding &&
      training.sharding->span != ShardSpan::none &&
      !training.shard_degree_is_given;
}

// Adds complaints about requests that sharding over `shards` ranks cannot meet.
void check_sharding(
    const ShardingRequest& sharding,
    const PlanRequest& request,
    int shards,
    std::vector<std::string>& complaints) {
  const int group_size = sharding.reshard_group_size;
  if (group_size < 0 || (group_size > 1 && shards % group_size != 0)) {
    complaints.push_back(format(
        "[parallel] reshard_after_forward is {} ranks, which do not divide the "
        "{} that share the parameters; use a divisor, true or false",
        group_size,
        shards));
  }
  // One rank has shards too where they lie in files.
  if (sharding.cpu_offload && !sharding.disk && shards == 1 &&
      !request.device.is_cpu()) {
    complaints.push_back(format(
        "[parallel] offload to the CPU is on, on {}, but nothing is sharded, "
        "so there are no shards to keep there; shard over several ranks, or "
        "leave it out",
        request.device.str()));
  }
  if (sharding.span == ShardSpan::none && shards > 1) {
    complaints.push_back(format(
        "[parallel] shard is {}, but the strategy shards nothing (NO_SHARD, or "
        "ZeRO stage 0); correct one of them",
        shards));
  }
}

// Gradients of shards are averaged over replicas when a backward has ended.
void check_steps_in_backward(
    const ShardingRequest& sharding,
    const ParallelPlan& plan,
    std::vector<std::string>& complaints) {
  if (!sharding.disk || !sharding.disk->steps_in_backward) return;
  for (const Axis axis : {Axis::replicate, Axis::context}) {
    if (plan.degree(axis) == 1) continue;
    complaints.push_back(format(
        "[parallel] {} must be 1 where step_in_backward is true, but is {}; "
        "shard over these ranks as well, or leave step_in_backward out",
        name_of(axis),
        plan.degree(axis)));
  }
}

// Applies ReplicateOptions to the replicas of a sharded model.
void apply_replicate_options(
    const PlanRequest& request,
    ParallelPlan& plan,
    std::vector<std::string>& complaints) {
  const ReplicateOptions& given = request.replicate;
  ShardOptions& shard = plan.techniques.shard;
  shard.broadcast_buffers = given.broadcast_buffers;
  const bool is_alone = plan.would_shard;
  if (!has_shards(plan) && !is_alone) return;
  const bool is_replicated = has_replicas(plan) || is_alone;
  ShardedReplicas replicas = read_replicate_options(given, is_replicated);
  shard.replica_dtype = replicas.dtype;
  if (is_replicated) shard.message_bytes = given.bucket_bytes;
  if (request.replicate_is_inherited) return;
  if (!is_alone) plan.ignored = std::move(replicas.ignored);
  if (replicas.complaint) complaints.push_back(*std::move(replicas.complaint));
}

// Complains about axes along which the scales of gradients and moments are no
// longer those of one process.
void check_ms_amp(
    const PlanRequest& request,
    const ParallelPlan& plan,
    std::vector<std::string>& complaints) {
  if (!request.float8 ||
      !std::holds_alternative<MSAMPRecipeKwargs>(request.float8->recipe)) {
    return;
  }
  std::vector<std::string> axes;
  for (const Axis axis :
       {Axis::pipeline, Axis::shard, Axis::expert, Axis::tensor}) {
    if (plan.degree(axis) > 1 || (axis == Axis::shard && plan.would_shard))
      axes.emplace_back(name_of(axis));
  }
  if (axes.empty()) return;
  complaints.push_back(format(
      "[precision] MS-AMP's recipe keeps a scale for each full gradient and "
      "moment, but {} {} a model over ranks; use replicas and context only, or "
      "another recipe (AORecipeKwargs, TERecipeKwargs)",
      join(axes, " and "),
      axes.size() == 1 ? "divides" : "divide"));
}

// Reports that weights were to be gathered in float8, if nothing gathers them.
void note_unused_gather(const PlanRequest& request, ParallelPlan& plan) {
  const bool is_sharded = has_shards(plan) || plan.would_shard;
  if (!request.float8 || !request.float8->float8_all_gather_is_given ||
      (is_sharded && plan.techniques.shard.shards_parameters)) {
    return;
  }
  plan.ignored.push_back(
      {"enable_fsdp_float8_all_gather",
       "no parameters are sharded",
       "code",
       "fp8_enable_fsdp_float8_all_gather"});
}

}  // namespace

ParallelPlan make_plan(const PlanRequest& request) {
  const TrainingRequest& training = request.training;
  std::vector<std::string> complaints = training.complaints;
  std::optional<ShardingRequest> sharding = training.sharding;
  ParallelPlan plan;
  plan.degrees = choose_degrees(request, complaints);
  plan.would_shard = would_shard_if_several(request);
  const int shards = plan.degree(Axis::shard);
  if (sharding) {
    check_sharding(*sharding, request, shards, complaints);
    check_steps_in_backward(*sharding, plan, complaints);
  }
  // Checked even if nothing is replicated now: a program that runs on one
  // process should run on several.
  if (auto complaint = validate_replicate(request.replicate))
    complaints.push_back(*std::move(complaint));
  if (sharding) {
    // The group of all shards is the shard group itself.
    if (sharding->reshard_group_size == shards)
      sharding->reshard_group_size = 0;
    plan.techniques.shard =
        make_shard_options(*sharding, training.precision.sharded);
    plan.makes_on_rank_0 = sharding->make_on_rank_0;
    plan.reads_on_rank_0 = sharding->read_on_rank_0;
  }
  apply_replicate_options(request, plan, complaints);
  note_unused_gather(request, plan);
  check_ms_amp(request, plan, complaints);
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));

  TechniqueOptions& techniques = plan.techniques;
  techniques.replicate = request.replicate;
  techniques.master_weights = request.master_weights;
  techniques.float8 = request.float8;
  techniques.experts = training.experts;
  techniques.activation_checkpointing = training.recomputation;
  techniques.parallelize_plan = training.parallelize_plan;
  techniques.infers_plan = training.infers_plan;
  techniques.divides_sequences = training.divides_sequences;
  techniques.added = request.added;
  techniques.shard.master_weights = request.master_weights;
  plan.keeps_freed_blocks = request.device.is_cpu() &&
      request.keep_freed_blocks.value_or(
          sharding.has_value() && (shards > 1 || sharding->disk) &&
          !request.heap_is_tuned);
  return plan;
}

std::vector<std::string_view> technique_names() {
  std::vector<std::string_view> names;
  for (const Technique& row : kTechniques) names.push_back(row.name);
  return names;
}

StrategyList make_strategies(
    const Mesh& mesh,
    const ParallelPlan& plan,
    const torch::nn::Module& model) {
  StrategyList strategies;
  for (const AddedTechnique& added : plan.techniques.added) {
    if (mesh.degree(added.axis) > 1)
      strategies.add(added.name, added.make(mesh));
  }
  for (const Technique& row : kTechniques) {
    if (row.is_wanted(plan) &&
        (row.is_for == nullptr || row.is_for(plan, model)))
      strategies.add(row.name, row.make(mesh, plan.techniques));
  }
  return strategies;
}

}  // namespace accelerate::detail
