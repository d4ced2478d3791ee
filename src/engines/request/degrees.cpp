#include "engines/request/degrees.h"

#include <string_view>
#include <tuple>

#include "base/text/text.h"
#include "engines/option_fields.h"

namespace accelerate::detail {

namespace {

using RequestedDegrees = std::array<std::optional<int>, kNumAxes>;

// An axis, and the field and launcher option that give its degree.
struct DegreeRow {
  Axis axis;
  std::optional<int> ParallelOptions::*field;
  std::string_view option;
};

constexpr DegreeRow kDegrees[] = {
    {Axis::pipeline, &ParallelOptions::pipeline, "parallelism_config_pp_size"},
    {Axis::replicate,
     &ParallelOptions::replicate,
     "parallelism_config_dp_replicate_size"},
    {Axis::shard, &ParallelOptions::shard, "parallelism_config_dp_shard_size"},
    {Axis::expert, &ParallelOptions::expert, "parallelism_config_ep_size"},
    {Axis::context, &ParallelOptions::context, "parallelism_config_cp_size"},
    {Axis::tensor, &ParallelOptions::tensor, "parallelism_config_tp_size"},
};

constexpr std::tuple kParallelismFields{
    OptionField{
        "parallelism_config_dp_replicate_size",
        &ParallelismConfig::dp_replicate_size},
    OptionField{
        "parallelism_config_dp_shard_size",
        &ParallelismConfig::dp_shard_size},
    OptionField{"parallelism_config_tp_size", &ParallelismConfig::tp_size},
    OptionField{"parallelism_config_cp_size", &ParallelismConfig::cp_size},
    OptionField{
        "parallelism_config_cp_backend",
        &ParallelismConfig::cp_backend},
    OptionField{
        "parallelism_config_cp_comm_strategy",
        &ParallelismConfig::cp_comm_strategy},
    OptionField{"parallelism_config_sp_size", &ParallelismConfig::sp_size},
    OptionField{
        "parallelism_config_sp_backend",
        &ParallelismConfig::sp_backend},
    OptionField{
        "parallelism_config_sp_seq_length",
        &ParallelismConfig::sp_seq_length},
    OptionField{
        "parallelism_config_sp_seq_length_is_variable",
        &ParallelismConfig::sp_seq_length_is_variable}};

// A degree under another name than its axis's.
struct NamedDegree {
  Axis axis;
  std::string_view name;
  std::optional<int> value;
};

void add_parallelism(
    std::vector<NamedDegree>& named,
    const ParallelismConfig& config) {
  const int num_ranks = *config.dp_replicate_size * *config.dp_shard_size *
      *config.tp_size * *config.cp_size * *config.sp_size;
  // If all degrees are 1, the configuration does not request 1 replica either.
  if (num_ranks == 1) return;
  const bool exchanges_heads = *config.sp_size > 1;
  named.insert(
      named.end(),
      {{Axis::replicate, "dp_replicate_size", config.dp_replicate_size},
       {Axis::shard, "dp_shard_size", config.dp_shard_size},
       {Axis::tensor, "tp_size", config.tp_size},
       {Axis::context,
        exchanges_heads ? "sp_size" : "cp_size",
        exchanges_heads ? config.sp_size : config.cp_size}});
}

void add_megatron_lm(
    std::vector<NamedDegree>& named,
    const MegatronLMOptions& found) {
  named.insert(
      named.end(),
      {{Axis::tensor, "tp_degree", found.tp_degree},
       {Axis::pipeline, "pp_degree", found.pp_degree},
       {Axis::context, "context_parallel_size", found.context_parallel_size},
       {Axis::expert,
        "expert_model_parallel_size",
        found.expert_model_parallel_size}});
}

// Degrees under several names must agree.
void take_named_degrees(
    RequestedDegrees& degrees,
    const std::vector<NamedDegree>& named,
    std::vector<std::string>& conflicts) {
  for (const NamedDegree& other : named) {
    std::optional<int>& degree = degrees[static_cast<std::size_t>(other.axis)];
    if (degree && other.value && *degree != *other.value) {
      conflicts.push_back(format(
          "[parallel] {} is {}, but {} is {}; leave one of them out",
          name_of(other.axis),
          *degree,
          other.name,
          *other.value));
    }
    if (other.value) degree = other.value;
  }
}

void check_experts(
    const MegatronLMOptions& found,
    std::vector<std::string>& complaints) {
  const int split = *found.expert_tensor_parallel_size;
  if (split == 1 || split == *found.tp_degree) return;
  complaints.push_back(format(
      "[parallel] expert_tensor_parallel_size is {}, but tp_degree is {}; "
      "experts are split over all tensor-parallel ranks or "
      "over none: set it to {}",
      split,
      *found.tp_degree,
      *found.tp_degree == 1 ? "1" : format("1 or {}", *found.tp_degree)));
}

// Lists what a ParallelismConfig sets for degrees of 1; `found` is `given` as
// resolved.
void list_without_effect(
    std::vector<IgnoredSetting>& ignored,
    const ParallelismConfig& given,
    const ParallelismConfig& found) {
  const IgnoredInCode note(ignored);
  if (*found.cp_size == 1) {
    note(
        given.cp_comm_strategy.has_value(), "cp_comm_strategy", "cp_size is 1");
  }
  if (*found.sp_size == 1) {
    const std::string instead = "sp_size is 1";
    note(given.sp_seq_length.has_value(), "sp_seq_length", instead);
    note(
        given.sp_seq_length_is_variable.has_value(),
        "sp_seq_length_is_variable",
        instead);
  } else {
    note(
        *found.sp_seq_length_is_variable && given.sp_seq_length.has_value(),
        "sp_seq_length",
        "sp_seq_length_is_variable is true");
  }
}

}  // namespace

void read_sequences(
    TrainingRequest& request,
    const std::optional<ParallelismConfig>& given,
    const ParallelismConfig& found) {
  if (request.degree(Axis::context).value_or(1) > 1) {
    SequenceRequest& sequence = request.sequence;
    sequence.exchange_heads = *found.sp_size > 1;
    sequence.rotate_blocks = found.cp_comm_strategy == "alltoall";
    if (!found.sp_seq_length_is_variable.value_or(true))
      sequence.length = found.sp_seq_length;
  }
  if (given) list_without_effect(request.ignored, *given, found);
}

std::array<std::optional<int>, kNumAxes> read_degrees(
    const ParallelOptions& options,
    const Settings& settings,
    const ParallelismConfig* config,
    const MegatronLMOptions* megatron,
    std::vector<std::string>& complaints) {
  RequestedDegrees own;
  for (const DegreeRow& row : kDegrees)
    own[static_cast<std::size_t>(row.axis)] = options.*row.field;
  RequestedDegrees degrees = own;
  std::vector<NamedDegree> named;
  // Degrees that only the launcher gives are read below, except for this one,
  // which is not an axis.
  const bool gives_degrees = config != nullptr &&
      (options.parallelism_config || config->sp_size.value_or(1) > 1);
  if (gives_degrees) add_parallelism(named, *config);
  if (megatron != nullptr) add_megatron_lm(named, *megatron);
  std::vector<std::string> conflicts;
  take_named_degrees(degrees, named, conflicts);
  if (megatron != nullptr) check_experts(*megatron, conflicts);
  if (!conflicts.empty()) {
    complaints.push_back(join(conflicts, "\n"));
    degrees = own;
  }
  for (const DegreeRow& row : kDegrees) {
    std::optional<int>& degree = degrees[static_cast<std::size_t>(row.axis)];
    // The option table's default of 1 does not count as given.
    if (!settings.is_given(row.option)) continue;
    // Giving one degree is enough, so this switch is equivalent to any of them.
    settings.mark_read("use_parallelism_config");
    const auto given = static_cast<int>(*settings.integer(row.option));
    const bool is_from_code = options.*row.field || options.parallelism_config;
    // Accelerate's launcher passes degrees of 1 as well.
    if (degree && *degree != given && given > 1 && !is_from_code) {
      complaints.push_back(format(
          "[parallel] {} is {} by Megatron-LM's settings, but {} is {}; leave "
          "one of them out",
          name_of(row.axis),
          *degree,
          row.option,
          given));
    }
    if (!degree) degree = given;
  }
  return degrees;
}

void record_degrees(Settings& settings, const ParallelOptions& options) {
  for (const DegreeRow& row : kDegrees)
    record(settings, row.option, options.*row.field, {});
  const ParallelismConfig given =
      options.parallelism_config.value_or(ParallelismConfig());
  record_fields(settings, kParallelismFields, given, {});
}

}  // namespace accelerate::detail
