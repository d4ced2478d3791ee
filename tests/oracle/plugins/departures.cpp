#include "oracle/departures.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "base/text/text.h"
#include "config/options/option_table.h"
#include "oracle/plugins/plugins.h"

namespace accelerate::oracle {

namespace topic_plugins {

namespace {

bool is_plugin(const Json& input, std::string_view name) {
  return input.value("plugin", "") == name;
}

bool is_error(const Json& outcome) { return outcome.contains("error"); }

bool has(const Json& args, const char* name) {
  return args.contains(name) && !args.at(name).is_null();
}

bool count_checkpoints(const Json& input, const Json&, Json& expected) {
  if (!is_plugin(input, "project") || is_error(expected) ||
      has(input.at("args"), "iteration")) {
    return false;
  }
  expected["fields"]["iteration"] = nullptr;
  return true;
}

bool move_logging_directory(const Json& input, const Json&, Json& expected) {
  if (!is_plugin(input, "project") || is_error(expected) ||
      has(input.at("args"), "logging_dir") ||
      !has(input.at("args"), "project_dir") ||
      input.at("set_directories").is_null()) {
    return false;
  }
  expected["fields"]["logging_dir"] = input.at("set_directories");
  return true;
}

bool leave_sequences_whole(const Json& input, const Json&, Json& expected) {
  if (!is_plugin(input, "megatron") || is_error(expected) ||
      has(input.at("args"), "context_parallel_size") ||
      input.at("env").contains("MEGATRON_LM_CONTEXT_PARALLEL_SIZE")) {
    return false;
  }
  expected["fields"]["context_parallel_size"] = 1;
  return true;
}

bool is_truth_value(const std::string& text) {
  constexpr std::array<std::string_view, 12> kWords{
      "y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0"};
  return std::find(kWords.begin(), kWords.end(), detail::to_lower(text)) !=
      kWords.end();
}

bool is_number(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data(), end, value).ptr == end;
}

// Whether a variable's value is invalid for every reader of the variable.
bool is_unreadable(const std::string& variable, const std::string& value) {
  using enum detail::OptionKind;
  for (const detail::OptionSpec& option : detail::option_table()) {
    if (option.variable != variable) continue;
    switch (option.kind) {
      case boolean:
      case truth:
        return !is_truth_value(value);
      case integer:
      case number:
        return value != "auto" && !is_number(value);
      case choice:
      case text:
        return false;
    }
  }
  return false;
}

bool refuse_unreadable_values(const Json& input, const Json&, Json& expected) {
  if (is_error(expected)) return false;
  for (const auto& [variable, text] : input.at("env").items()) {
    if (!is_unreadable(variable, text)) continue;
    expected = {{"error", "ConfigError"}};
    return true;
  }
  return false;
}

bool name_strategies(const Json& input, const Json&, Json& expected) {
  constexpr std::array kNames{
      "FULL_SHARD",
      "SHARD_GRAD_OP",
      "NO_SHARD",
      "HYBRID_SHARD",
      "_HYBRID_SHARD_ZERO2"};
  if (!is_plugin(input, "fsdp") || is_error(expected)) return false;
  Json& strategy = expected["fields"]["sharding_strategy"];
  if (!strategy.is_number_integer()) return false;
  const auto number = strategy.get<std::size_t>();
  if (number < 1 || number > kNames.size()) return false;
  strategy = kNames.at(number - 1);
  return true;
}

bool listen_to_the_launcher(const Json& input, const Json&, Json& expected) {
  const Json& args = input.at("args");
  const char* const variable = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
  if (!is_plugin(input, "gradient_accumulation") || is_error(expected) ||
      args.empty() || has(args, "num_steps") ||
      !input.at("env").contains(variable)) {
    return false;
  }
  const std::string steps = input.at("env").at(variable);
  if (!is_number(steps)) return false;
  expected["num_steps"] = std::stoi(steps);
  return true;
}

// For gradient_accumulation_steps without a plugin; 1 does not count as given.
bool put_code_first(const Json& input, const Json&, Json& expected) {
  const Json steps = input.value("accelerator_steps", Json());
  if (!is_plugin(input, "gradient_accumulation") || is_error(expected) ||
      !input.at("args").empty() || steps.is_null() || steps == 1) {
    return false;
  }
  expected["num_steps"] = steps;
  return true;
}

// Accelerate refuses any plugin together with gradient_accumulation_steps.
bool take_one_number_twice(const Json& input, const Json&, Json& expected) {
  const Json& args = input.at("args");
  const Json steps = input.value("accelerator_steps", Json());
  if (!is_plugin(input, "gradient_accumulation") || !is_error(expected) ||
      args.empty() || steps.is_null() || steps == 1 ||
      (has(args, "num_steps") && args.at("num_steps") != steps)) {
    return false;
  }
  Json given = args;
  given.erase("adjust_scheduler");
  const Json defaults{
      {"num_steps", nullptr},
      {"sync_with_dataloader", true},
      {"sync_each_batch", false}};
  expected = {
      {"to_kwargs", differing(given, defaults)},
      {"num_steps", steps},
      {"adjust_scheduler", false},
      {"sync_with_dataloader", args.value("sync_with_dataloader", true)}};
  return true;
}

// Whether an argument is true, or the variable if the argument is not given.
bool is_true(const Json& input, const char* argument, const char* variable) {
  const Json& args = input.at("args");
  if (has(args, argument)) return args.at(argument).get<bool>();
  const Json& env = input.at("env");
  return env.contains(variable) &&
      detail::parse_bool(env.at(variable).get<std::string>()).value_or(false);
}

// Accelerate refuses sync_module_states without a device, so its answer is not
// recorded. Expects the answer to the same case without sync_module_states and
// cpu_ram_efficient_loading, which recorded cases check, plus the latter.
bool share_weights_of_hosts(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!is_plugin(input, "fsdp") || !is_error(expected) || is_error(found) ||
      input.at("cuda") != false) {
    return false;
  }
  const bool loads_on_one = is_true(
      input, "cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING");
  if (!loads_on_one &&
      !is_true(input, "sync_module_states", "FSDP_SYNC_MODULE_STATES")) {
    return false;
  }
  Json plain = input;
  plain["args"]["cpu_ram_efficient_loading"] = false;
  plain["args"]["sync_module_states"] = false;
  const Json answer = run_fsdp(plain);
  // Version 2 has no such field.
  if (answer.at("fields").at("fsdp_version") == 2) return false;
  expected = answer;
  expected["fields"]["cpu_ram_efficient_loading"] = loads_on_one;
  return true;
}

Json shifted(const Json& ranks, int by) {
  Json moved = Json::array();
  for (const Json& rank : ranks) moved.push_back(rank.get<int>() + by);
  return moved;
}

Json preceded(const Json& first, const Json& rest) {
  Json all = Json::array({first});
  for (const Json& item : rest) all.push_back(item);
  return all;
}

// The groups of a rank in `num_replicas` consecutive meshes of `size` ranks
// each, derived from the groups of the same place in one unsharded mesh.
Json replicated_groups(
    const Json& place,
    int rank,
    int size,
    int num_replicas) {
  const int replica = rank / size;
  Json groups = Json::object(), peers = Json::array(), all = Json::array();
  for (const auto& [name, ranks] : place.at("groups").items())
    groups[name] = shifted(ranks, replica * size);
  const Json own =
      place.at("groups").value("dp_cp", Json::array({rank % size}));
  for (int i = 0; i < num_replicas; ++i) {
    peers.push_back(rank % size + i * size);
    for (const Json& peer : shifted(own, i * size)) all.push_back(peer);
  }
  groups["dp_replicate"] = peers;
  groups["dp"] = peers;
  groups["dp_cp"] = all;
  return {
      {"coordinate", preceded(replica, place.at("coordinate"))},
      {"groups", groups}};
}

// Accelerate refuses tensor and context parallelism with unsharded replicas, so
// its answer is not recorded. Expects one copy per replica of the mesh of the
// same case without replicas, which recorded cases check.
bool combine_any_axes(const Json& input, const Json& found, Json& expected) {
  if (!is_plugin(input, "parallelism") || !is_error(expected) ||
      is_error(found)) {
    return false;
  }
  Json single = input;
  single["args"]["dp_replicate_size"] = 1;
  const Json one = run_parallelism_config(single);
  const Json& fields = one.at("fields");
  const char* const variable = "PARALLELISM_CONFIG_DP_REPLICATE_SIZE";
  const int num_replicas = has(input.at("args"), "dp_replicate_size")
      ? input.at("args").at("dp_replicate_size").get<int>()
      : std::stoi(input.at("env").value(variable, "1"));
  if (num_replicas <= 1 || fields.at("dp_shard_size") != 1 ||
      (fields.at("tp_size") == 1 && fields.at("cp_size") == 1)) {
    return false;
  }
  const int size = one.at("total_size").get<int>();
  expected = one;
  expected["fields"]["dp_replicate_size"] = num_replicas;
  expected["total_size"] = size * num_replicas;
  expected["data_parallel_size"] =
      one.at("data_parallel_size").get<int>() * num_replicas;
  expected["mesh_sizes"] = preceded(num_replicas, one.at("mesh_sizes"));
  for (const char* const names :
       {"mesh_names",
        "dp_dim_names",
        "dp_cp_dim_names",
        "fsdp_dim_names",
        "active_mesh_dims"}) {
    expected[names] = preceded("dp_replicate", one.at(names));
  }
  if (!one.contains("groups")) return true;
  expected["groups"] = Json::object();
  for (const int rank : {0, size * num_replicas - 1}) {
    const Json& place = one.at("groups").at(std::to_string(rank % size));
    expected["groups"][std::to_string(rank)] =
        replicated_groups(place, rank, size, num_replicas);
  }
  return true;
}

const std::vector<PythonOnlyField>& python_only_fields() {
  constexpr std::string_view kFunction = "a function of Python";
  constexpr std::string_view kDerived =
      "an object of torch that follows from state_dict_type";
  constexpr std::string_view kConnection =
      "how torch.distributed connects; a World has transports and stores";
  constexpr std::string_view kIdle = "a setting that has no effect in Python";
  constexpr std::string_view kReported =
      "nothing here can act on it; files and variables that have it are "
      "reported";
  static const std::vector<PythonOnlyField> fields{
      {"ddp", "dim", kIdle},
      {"ddp", "check_reduction", kIdle},
      {"gradient_accumulation", "adjust_scheduler", kIdle},
      {"fsdp", "has_param_init_fn", kFunction},
      {"fsdp", "state_dict_config", kDerived},
      {"fsdp", "optim_state_dict_config", kDerived},
      {"init_process_group", "backend", kConnection},
      {"init_process_group", "init_method", kConnection},
      {"dynamo", "options", "a dictionary for a compiler of Python code"},
      {"fsdp", "state_dict_type", kReported},
      {"fsdp", "use_orig_params", kReported},
      {"fsdp", "sync_module_states", kReported},
      {"deepspeed", "is_train_batch_min", kReported},
      {"deepspeed", "msamp_opt_level", kReported},
      {"parallelism", "tp_handler", kReported},
      {"dynamo", "disable", kReported},
      {"megatron", "overlap_cpu_optimizer_d2h_h2d", kReported},
      {"megatron", "eod_mask_loss", kReported},
      {"megatron", "attention_backend", kReported},
      {"megatron", "attention_softmax_in_fp32", kReported},
      {"megatron", "use_rotary_position_embeddings", kReported},
      {"megatron", "attention_dropout", kReported},
      {"megatron", "hidden_dropout", kReported},
      {"megatron", "pipeline_model_parallel_split_rank", kReported},
      {"megatron", "seq_length", kReported},
      {"megatron", "encoder_seq_length", kReported},
      {"megatron", "decoder_seq_length", kReported},
      {"megatron", "return_logits", kReported},
      {"megatron", "is_train_batch_min", kReported},
      {"megatron", "lr_mult", kReported},
      {"megatron", "consumed_samples", kReported},
      {"megatron", "megatron_dataset_flag", kReported},
      {"megatron", "eval_iters", kReported},
      {"megatron", "eval_interval", kReported},
      {"megatron", "tensorboard_dir", kReported},
      {"megatron", "set_all_logging_options", kReported},
      {"megatron", "no_wd_decay_cond", kFunction},
      {"megatron", "scale_lr_cond", kFunction},
      {"megatron", "custom_train_step_class", "a class of Python"},
      {"megatron", "custom_train_step_kwargs", "arguments of that class"},
      {"megatron", "custom_model_provider_function", kFunction},
      {"megatron", "custom_prepare_model_function", kFunction},
      {"megatron", "custom_megatron_datasets_provider_function", kFunction},
      {"megatron", "custom_get_batch_function", kFunction},
      {"megatron", "custom_loss_function", kFunction},
      {"megatron",
       "megatron_lm_default_args",
       "arguments of another package that repeat the fields"}};
  return fields;
}

}  // namespace

}  // namespace topic_plugins

Departures plugin_departures() {
  using namespace topic_plugins;
  return {
      python_only_fields(),
      {{"an unset iteration is one more than the highest checkpoint's",
        &count_checkpoints},
       {"logging_dir follows set_directories() unless it is given",
        &move_logging_directory},
       {"Megatron-LM's context_parallel_size is 1 unless it is given (Q30)",
        &leave_sequences_whole},
       {"a value that nobody can read is an error everywhere",
        &refuse_unreadable_values},
       {"a sharding strategy that is given as a number has a name",
        &name_strategies},
       {"an accumulation plugin without num_steps does not hide what the "
        "launcher says",
        &listen_to_the_launcher},
       // Here code overrides everything, also this variable, which overrides
       // the argument in Accelerate.
       {"gradient_accumulation_steps of the code goes before the launcher's",
        &put_code_first},
       // Accelerate's error depends on whether a plugin is given. Here the
       // plugin is a struct that always exists, and its other fields are useful
       // with the number; two different numbers are an error, too.
       {"other settings of accumulation may go with "
        "gradient_accumulation_steps",
        &take_one_number_twice},
       // Ranks on CPUs send each other weights.
       {"sync_module_states needs no accelerator", &share_weights_of_hosts},
       // Boxes compose along any axes.
       {"replicas need not be sharded for tensor and context parallelism",
        &combine_any_axes}}};
}

}  // namespace accelerate::oracle
