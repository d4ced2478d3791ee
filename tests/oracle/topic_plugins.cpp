#include <array>
#include <cmath>

#include <accelerate/accelerate.h>

#include "base/text.h"
#include "comm/mesh.h"
#include "comm/rendezvous/timeout.h"
#include "config/settings.h"
#include "engines/deepspeed.h"
#include "engines/fully_sharded.h"
#include "engines/megatron_lm.h"
#include "engines/parallelism.h"
#include "oracle/oracle.h"
#include "train/accumulation_window.h"

namespace accelerate::oracle {

namespace topic_plugins {

using detail::Environment;
using detail::Settings;

Environment environment_of(const Json& input) {
  Environment environment;
  for (const auto& [name, value] : input.at("env").items())
    environment.set(name, value);
  return environment;
}

Settings settings_of(const Json& input) {
  const std::array sources{
      detail::source_from_environment(environment_of(input))};
  return detail::resolve(sources);
}

template <class T>
void read(const Json& args, const char* name, std::optional<T>& field) {
  if (args.contains(name) && !args.at(name).is_null())
    field = args.at(name).get<T>();
}

template <class T>
void read(const Json& args, const char* name, T& field) {
  if (args.contains(name) && !args.at(name).is_null())
    args.at(name).get_to(field);
}

template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class T>
Json name_or_null(const std::optional<T>& value) {
  return value ? Json(std::string(detail::name_of(*value))) : Json(nullptr);
}

// The fields that differ from their defaults.
Json differing(const Json& fields, const Json& defaults) {
  Json kept = Json::object();
  for (const auto& [name, value] : fields.items()) {
    if (value != defaults.at(name)) kept[name] = value;
  }
  return kept;
}

Json dtype_or_null(const std::optional<FloatType>& type) {
  if (!type) return nullptr;
  return *type == FloatType::fp32 ? "float32"
      : *type == FloatType::fp16  ? "float16"
                                  : "bfloat16";
}

Json policy_json(
    const std::optional<MixedPrecisionPolicy>& policy,
    int version) {
  if (!policy) return nullptr;
  Json json{
      {"param_dtype", dtype_or_null(policy->param_dtype)},
      {"reduce_dtype", dtype_or_null(policy->reduce_dtype)}};
  if (version == 2) {
    json["output_dtype"] = dtype_or_null(policy->output_dtype);
  } else {
    json["buffer_dtype"] = dtype_or_null(policy->buffer_dtype);
  }
  return json;
}

std::string word_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Json run_fsdp(const Json& input) {
  const Settings settings = settings_of(input);
  const Json& args = input.at("args");
  FullyShardedDataParallelOptions given;
  read(args, "fsdp_version", given.fsdp_version);
  if (args.contains("sharding_strategy")) {
    given.sharding_strategy =
        detail::parse_sharding_strategy(word_of(args.at("sharding_strategy")));
  }
  if (args.contains("reshard_after_forward")) {
    const Json& reshard = args.at("reshard_after_forward");
    if (reshard.is_boolean()) {
      given.reshard_after_forward = reshard.get<bool>();
    } else if (const auto truth =
                   detail::parse_bool(reshard.get<std::string>());
               truth && given.fsdp_version == 2) {
      given.reshard_after_forward = *truth;
    } else {
      given.reshard_after_forward =
          detail::parse_sharding_strategy(reshard.get<std::string>());
    }
  }
  if (args.contains("backward_prefetch")) {
    given.backward_prefetch =
        detail::parse_backward_prefetch(word_of(args.at("backward_prefetch")));
  }
  if (args.contains("state_dict_type")) {
    given.state_dict_type =
        detail::parse_state_dict_type(word_of(args.at("state_dict_type")));
  }
  if (args.contains("auto_wrap_policy")) {
    given.auto_wrap_policy =
        detail::parse_auto_wrap_policy(word_of(args.at("auto_wrap_policy")));
  }
  if (args.contains("mixed_precision_policy")) {
    given.mixed_precision_policy = detail::policy_named(
        args.at("mixed_precision_policy").get<std::string>(),
        given.fsdp_version.value_or(
            settings.text("fsdp_version") == "2" ? 2 : 1));
  }
  read(args, "forward_prefetch", given.forward_prefetch);
  read(
      args,
      "transformer_cls_names_to_wrap",
      given.transformer_cls_names_to_wrap);
  read(args, "min_num_params", given.min_num_params);
  read(args, "cpu_offload", given.cpu_offload);
  read(args, "ignored_modules", given.ignored_modules);
  read(args, "limit_all_gathers", given.limit_all_gathers);
  read(args, "use_orig_params", given.use_orig_params);
  read(args, "sync_module_states", given.sync_module_states);
  read(args, "activation_checkpointing", given.activation_checkpointing);
  read(
      args,
      "activation_checkpointing_offload",
      given.activation_checkpointing_offload);
  read(args, "cpu_ram_efficient_loading", given.cpu_ram_efficient_loading);

  const auto found = detail::resolve_fully_sharded(
      given,
      settings,
      input.at("set_mixed_precision").is_null()
          ? "no"
          : input.at("set_mixed_precision").get<std::string>());
  Json reshard = nullptr;
  if (found.reshard_after_forward) {
    reshard = std::visit(
        [](auto value) -> Json {
          if constexpr (std::is_same_v<decltype(value), ShardingStrategy>) {
            return std::string(detail::name_of(value));
          } else {
            return value;
          }
        },
        *found.reshard_after_forward);
  }
  const bool is_wrapped = found.auto_wrap_policy != AutoWrapPolicy::no_wrap;
  return {
      {"fields",
       {{"fsdp_version", *found.fsdp_version},
        {"sharding_strategy", name_or_null(found.sharding_strategy)},
        {"reshard_after_forward", reshard},
        {"backward_prefetch", name_or_null(found.backward_prefetch)},
        {"mixed_precision_policy",
         policy_json(found.mixed_precision_policy, *found.fsdp_version)},
        {"auto_wrap_policy",
         !is_wrapped ? Json(nullptr)
             : found.auto_wrap_policy == AutoWrapPolicy::size_based_wrap
             ? Json("size_based_auto_wrap_policy")
             : Json("transformer_auto_wrap_policy")},
        {"ignored_modules", json_of(found.ignored_modules)},
        {"state_dict_type", name_or_null(found.state_dict_type)},
        {"limit_all_gathers", json_of(found.limit_all_gathers)},
        {"use_orig_params", json_of(found.use_orig_params)},
        {"sync_module_states", json_of(found.sync_module_states)},
        {"forward_prefetch", json_of(found.forward_prefetch)},
        {"activation_checkpointing", json_of(found.activation_checkpointing)},
        {"activation_checkpointing_offload",
         json_of(found.activation_checkpointing_offload)},
        {"cpu_ram_efficient_loading", json_of(found.cpu_ram_efficient_loading)},
        {"transformer_cls_names_to_wrap",
         json_of(found.transformer_cls_names_to_wrap)},
        {"min_num_params", json_of(found.min_num_params)},
        {"cpu_offload", json_of(found.cpu_offload)}}}};
}

std::string encode_base64(const std::string& text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += 3) {
    std::uint32_t bits = 0;
    const std::size_t count = std::min<std::size_t>(3, text.size() - at);
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8 |
          (i < count ? static_cast<unsigned char>(text[at + i]) : 0);
    }
    for (std::size_t i = 0; i < 4; ++i)
      out.push_back(i <= count ? kDigits[bits >> (18 - 6 * i) & 63] : '=');
  }
  return out;
}

Json auto_or(const Json& value) {
  return value == kAuto ? Json("auto") : value;
}

Json run_deepspeed(const Json& input) {
  const Json& args = input.at("args");
  DeepSpeedOptions given;
  const auto number = [&](const char* name) -> std::optional<Json> {
    if (!args.contains(name)) return std::nullopt;
    return args.at(name) == "auto" ? Json(kAuto) : args.at(name);
  };
  if (const auto value = number("gradient_accumulation_steps"))
    given.gradient_accumulation_steps = value->get<int>();
  if (const auto value = number("gradient_clipping"))
    given.gradient_clipping = value->get<double>();
  read(args, "zero_stage", given.zero_stage);
  read(args, "offload_optimizer_device", given.offload_optimizer_device);
  read(args, "offload_param_device", given.offload_param_device);
  read(args, "offload_optimizer_nvme_path", given.offload_optimizer_nvme_path);
  read(args, "offload_param_nvme_path", given.offload_param_nvme_path);
  read(args, "zero3_init_flag", given.zero3_init_flag);
  read(args, "zero3_save_16bit_model", given.zero3_save_16bit_model);
  read(args, "transformer_moe_cls_names", given.transformer_moe_cls_names);
  if (args.contains("hf_ds_config")) {
    const std::string text = args.at("hf_ds_config").dump();
    given.hf_ds_config =
        args.at("hf_ds_config_form") == "base64" ? encode_base64(text) : text;
  }
  detail::DeepSpeedConfig config(
      given, settings_of(input), environment_of(input));
  if (!input.at("set_mixed_precision").is_null()) {
    config.set_mixed_precision(
        input.at("set_mixed_precision").get<std::string>());
  }
  if (!input.at("fill").is_null())
    config.fill(input.at("fill"), input.at("must_match"));

  const DeepSpeedOptions& found = config.options();
  // Accelerate calls it offloading if stages 2 and 3 name another device.
  const auto is_off_device = [&](const char* path) {
    const Json* const device = config.find(path);
    return device != nullptr && (*device == "cpu" || *device == "nvme");
  };
  const bool is_offload =
      (config.zero_stage() == 2 || config.zero_stage() == 3) &&
      (is_off_device("zero_optimization.offload_optimizer.device") ||
       is_off_device("zero_optimization.offload_param.device"));
  Json json = config.json();
  if (std::isinf(json.at("steps_per_print").get<double>()))
    json["steps_per_print"] = "inf";
  return {
      {"fields",
       {{"gradient_accumulation_steps",
         auto_or(*found.gradient_accumulation_steps)},
        {"gradient_clipping", auto_or(*found.gradient_clipping)},
        {"zero_stage", *found.zero_stage},
        {"offload_optimizer_device", *found.offload_optimizer_device},
        {"offload_param_device", *found.offload_param_device},
        {"offload_optimizer_nvme_path", *found.offload_optimizer_nvme_path},
        {"offload_param_nvme_path", *found.offload_param_nvme_path},
        {"zero3_init_flag", *found.zero3_init_flag},
        {"zero3_save_16bit_model", *found.zero3_save_16bit_model},
        {"transformer_moe_cls_names",
         json_of(found.transformer_moe_cls_names)}}},
      {"config", json},
      {"is_zero2", config.zero_stage() == 2},
      {"is_zero3", config.zero_stage() == 3},
      {"is_offload", is_offload}};
}

// A dimension of Accelerate's mesh, and the corresponding axis here. A sequence
// is sharded along cp or along sp, never both.
struct Dimension {
  std::string_view name;
  Axis axis;
  int size;
};

// Accelerate's names for a mesh. Ranks and groups come from Mesh.
class NamedDimensions {
 public:
  explicit NamedDimensions(const ParallelismConfig& config) {
    degrees_.fill(1);
    for (const Dimension& dimension :
         {Dimension{"dp_replicate", Axis::replicate, *config.dp_replicate_size},
          Dimension{"dp_shard", Axis::shard, *config.dp_shard_size},
          Dimension{"cp", Axis::context, *config.cp_size},
          Dimension{"sp", Axis::context, *config.sp_size},
          Dimension{"tp", Axis::tensor, *config.tp_size}}) {
      if (dimension.size == 1) continue;
      dimensions_.push_back(dimension);
      degrees_[static_cast<std::size_t>(dimension.axis)] = dimension.size;
    }
  }

  [[nodiscard]] const std::vector<Dimension>& all() const {
    return dimensions_;
  }

  [[nodiscard]] int size() const {
    int product = 1;
    for (const Dimension& dimension : dimensions_) product *= dimension.size;
    return product;
  }

  // Those of `names` that are larger than 1, in the order of `names`.
  [[nodiscard]] std::vector<Dimension> active(
      std::initializer_list<std::string_view> names) const {
    std::vector<Dimension> found;
    for (const std::string_view name : names) {
      for (const Dimension& dimension : dimensions_) {
        if (dimension.name == name) found.push_back(dimension);
      }
    }
    return found;
  }

  [[nodiscard]] Json names(
      std::initializer_list<std::string_view> wanted) const {
    Json names = Json::array();
    for (const Dimension& dimension : active(wanted))
      names.push_back(std::string(dimension.name));
    return names;
  }

  [[nodiscard]] Json coordinate(int rank) const {
    const auto place = detail::mesh_coordinates(degrees_, rank);
    Json coordinate = Json::array();
    for (const Dimension& dimension : dimensions_)
      coordinate.push_back(place[static_cast<std::size_t>(dimension.axis)]);
    return coordinate;
  }

  [[nodiscard]] Json group(int rank, const std::vector<Dimension>& dimensions)
      const {
    std::array<bool, kNumAxes> axes{};
    for (const Dimension& dimension : dimensions)
      axes[static_cast<std::size_t>(dimension.axis)] = true;
    return detail::mesh_ranks(degrees_, rank, axes);
  }

 private:
  std::vector<Dimension> dimensions_;
  std::array<int, kNumAxes> degrees_{};
};

Json groups_of(const NamedDimensions& mesh, int rank) {
  Json groups = Json::object();
  for (const Dimension& dimension : mesh.all())
    groups[std::string(dimension.name)] = mesh.group(rank, {dimension});
  const auto add = [&](const char* name,
                       std::initializer_list<std::string_view> names) {
    const auto active = mesh.active(names);
    if (!active.empty()) groups[name] = mesh.group(rank, active);
  };
  add("dp", {"dp_replicate", "dp_shard"});
  add("dp_shard_cp", {"dp_shard", "cp"});
  add("dp_cp", {"dp_replicate", "dp_shard", "cp"});
  return {{"coordinate", mesh.coordinate(rank)}, {"groups", groups}};
}

Json run_parallelism(const Json& input) {
  const Json& args = input.at("args");
  ParallelismConfig given;
  read(args, "dp_replicate_size", given.dp_replicate_size);
  read(args, "dp_shard_size", given.dp_shard_size);
  read(args, "tp_size", given.tp_size);
  read(args, "cp_size", given.cp_size);
  read(args, "sp_size", given.sp_size);
  read(args, "cp_backend", given.cp_backend);
  read(args, "sp_backend", given.sp_backend);
  read(args, "cp_comm_strategy", given.cp_comm_strategy);
  const auto found = detail::resolve_parallelism(given, settings_of(input));
  const NamedDimensions mesh(found);

  Json names = Json::array(), sizes = Json::array();
  for (const Dimension& dimension : mesh.all()) {
    names.push_back(std::string(dimension.name));
    sizes.push_back(dimension.size);
  }
  // The dimension that is sharded over always counts, even when it is 1.
  Json sharded_names = mesh.names({"dp_replicate"});
  sharded_names.push_back("dp_shard_cp");
  const int same_data = *found.tp_size * *found.cp_size * *found.sp_size;
  Json outcome{
      {"fields",
       {{"dp_replicate_size", *found.dp_replicate_size},
        {"dp_shard_size", *found.dp_shard_size},
        {"tp_size", *found.tp_size},
        {"cp_size", *found.cp_size},
        {"cp_backend", *found.cp_backend},
        {"sp_size", *found.sp_size},
        {"sp_backend", *found.sp_backend},
        {"cp_handler",
         found.cp_comm_strategy
             ? Json{{"cp_comm_strategy", *found.cp_comm_strategy}}
             : Json(nullptr)},
        {"sp_handler",
         found.sp_seq_length_is_variable
             ? Json{{"sp_seq_length", json_of(found.sp_seq_length)},
                    {"sp_seq_length_is_variable",
                     *found.sp_seq_length_is_variable},
                    {"sp_attn_implementation",
                     json_of(found.sp_attn_implementation)}}
             : Json(nullptr)}}},
      {"total_size", mesh.size()},
      {"non_data_parallel_size", same_data},
      {"data_parallel_size", mesh.size() / same_data},
      {"mesh_names", names},
      {"mesh_sizes", sizes},
      {"dp_dim_names", mesh.names({"dp_replicate", "dp_shard"})},
      {"non_dp_dim_names", mesh.names({"tp", "cp", "sp"})},
      {"dp_shard_cp_dim_names", mesh.names({"dp_shard", "cp"})},
      {"dp_cp_dim_names", mesh.names({"dp_replicate", "dp_shard", "cp"})},
      {"fsdp_dim_names", sharded_names},
      {"active_mesh_dims",
       mesh.names({"dp_replicate", "dp_shard", "tp", "cp", "sp"})}};
  if (mesh.size() > 1 && *found.sp_size == 1) {
    for (const int rank : {0, mesh.size() - 1})
      outcome["groups"][std::to_string(rank)] = groups_of(mesh, rank);
  }
  return outcome;
}

Json run_gradient_accumulation(const Json& input) {
  const Json& args = input.at("args");
  AcceleratorOptions options;
  read(input, "accelerator_steps", options.gradient_accumulation_steps);
  GradientAccumulationOptions& plugin = options.gradient_accumulation;
  read(args, "num_steps", plugin.num_steps);
  read(args, "sync_with_dataloader", plugin.sync_with_dataloader);
  read(args, "sync_each_batch", plugin.sync_each_batch);
  const auto fields = [](const GradientAccumulationOptions& accumulation) {
    return Json{
        {"num_steps", json_of(accumulation.num_steps)},
        {"sync_with_dataloader", accumulation.sync_with_dataloader},
        {"sync_each_batch", accumulation.sync_each_batch}};
  };
  return {
      {"to_kwargs",
       args.empty() && input.at("accelerator_steps").is_null()
           ? Json(nullptr)
           : differing(fields(plugin), fields({}))},
      {"num_steps", detail::accumulation_window(options, settings_of(input))},
      {"sync_with_dataloader", plugin.sync_with_dataloader}};
}

Json run_dataloader(const Json& input) {
  const Json& args = input.at("args");
  DataLoaderConfiguration options;
  read(args, "split_batches", options.split_batches);
  read(args, "dispatch_batches", options.dispatch_batches);
  read(args, "even_batches", options.even_batches);
  read(args, "use_seedable_sampler", options.use_seedable_sampler);
  read(args, "data_seed", options.data_seed);
  read(args, "non_blocking", options.non_blocking);
  return {
      {"fields",
       {{"split_batches", options.split_batches},
        {"dispatch_batches", json_of(options.dispatch_batches)},
        {"even_batches", options.even_batches},
        {"use_seedable_sampler", options.use_seedable_sampler},
        {"data_seed", json_of(options.data_seed)},
        {"non_blocking", options.non_blocking}}}};
}

Json run_project(const Json& input) {
  const Json& args = input.at("args");
  ProjectConfiguration project;
  read(args, "project_dir", project.project_dir);
  read(args, "logging_dir", project.logging_dir);
  read(
      args, "automatic_checkpoint_naming", project.automatic_checkpoint_naming);
  read(args, "total_limit", project.total_limit);
  read(args, "iteration", project.iteration);
  read(args, "save_on_each_node", project.save_on_each_node);
  if (!input.at("set_directories").is_null())
    project.set_directories(input.at("set_directories"));
  const auto text = [](const std::string& word) {
    return word.empty() ? Json(nullptr) : Json(word);
  };
  return {
      {"fields",
       {{"project_dir", text(project.project_dir)},
        {"logging_dir",
         text(
             project.logging_dir.empty() ? project.project_dir
                                         : project.logging_dir)},
        {"automatic_checkpoint_naming", project.automatic_checkpoint_naming},
        {"total_limit", json_of(project.total_limit)},
        {"iteration", json_of(project.iteration)},
        {"save_on_each_node", project.save_on_each_node}}}};
}

Json run_dynamo(const Json& input) {
  detail::Source code{detail::Origin::code, {}};
  for (const auto& [name, value] : input.at("args").items()) {
    const bool is_use = name == "fullgraph" || name == "dynamic";
    code.add(
        (is_use ? "dynamo_use_" : "dynamo_") + name, word_of(value), "code");
  }
  const std::array sources{
      detail::source_from_environment(environment_of(input)), code};
  const Settings settings = detail::resolve(sources);
  return {
      {"fields",
       {{"backend", detail::to_upper(*settings.text("dynamo_backend"))},
        {"mode", *settings.text("dynamo_mode")},
        {"fullgraph", settings.boolean("dynamo_use_fullgraph")},
        {"dynamic",
         settings.is_given("dynamo_use_dynamic")
             ? Json(settings.boolean("dynamo_use_dynamic"))
             : Json(nullptr)},
        {"use_regional_compilation",
         settings.boolean("dynamo_use_regional_compilation")}}}};
}

Json grad_scaler_fields(const GradScalerOptions& options) {
  return {
      {"init_scale", options.init_scale},
      {"growth_factor", options.growth_factor},
      {"backoff_factor", options.backoff_factor},
      {"growth_interval", options.growth_interval},
      {"enabled", options.enabled}};
}

Json autocast_fields(const AutocastOptions& options) {
  return {
      {"enabled", options.enabled},
      {"cache_enabled", json_of(options.cache_enabled)}};
}

Json replicate_fields(const ReplicateOptions& options) {
  return {
      {"broadcast_buffers", options.broadcast_buffers},
      {"bucket_cap_mb", options.bucket_bytes >> 20},
      {"find_unused_parameters", options.find_unused_parameters},
      {"gradient_as_bucket_view", options.gradient_as_bucket_view},
      {"static_graph", options.static_graph},
      {"comm_hook", options.comm_hook == CommHook::none ? "NO" : "other"},
      {"comm_wrapper",
       options.comm_wrapper == CommWrapper::none ? "NO" : "other"}};
}

Json run_handler(const Json& input) {
  const Json& args = input.at("args");
  const std::string handler = input.at("handler");
  Json fields, defaults;
  if (handler == "grad_scaler") {
    GradScalerOptions options;
    read(args, "init_scale", options.init_scale);
    read(args, "growth_factor", options.growth_factor);
    read(args, "backoff_factor", options.backoff_factor);
    read(args, "growth_interval", options.growth_interval);
    read(args, "enabled", options.enabled);
    fields = grad_scaler_fields(options);
    defaults = grad_scaler_fields({});
  } else if (handler == "autocast") {
    AutocastOptions options;
    read(args, "enabled", options.enabled);
    read(args, "cache_enabled", options.cache_enabled);
    fields = autocast_fields(options);
    defaults = autocast_fields({});
  } else if (handler == "ddp") {
    ReplicateOptions options;
    read(args, "broadcast_buffers", options.broadcast_buffers);
    if (args.contains("bucket_cap_mb"))
      options.bucket_bytes = args.at("bucket_cap_mb").get<std::int64_t>() << 20;
    read(args, "find_unused_parameters", options.find_unused_parameters);
    read(args, "gradient_as_bucket_view", options.gradient_as_bucket_view);
    read(args, "static_graph", options.static_graph);
    fields = replicate_fields(options);
    defaults = replicate_fields({});
  } else {
    const bool is_nccl = args.value("backend", "nccl") == "nccl";
    const auto seconds =
        detail::default_timeout(is_nccl ? at::kCUDA : at::kCPU);
    return {{"fields", {{"timeout", static_cast<double>(seconds.count())}}}};
  }
  return {{"fields", fields}, {"to_kwargs", differing(fields, defaults)}};
}

Json run_profile(const Json& input) {
  const Json& args = input.at("args");
  Json activities = nullptr;
  if (args.contains("activities")) {
    activities = Json::array();
    for (const std::string word : args.at("activities")) {
      activities.push_back(
          parse_profiler_activity(word) == ProfilerActivity::cpu ? "cpu"
                                                                 : "cuda");
    }
  }
  Json outcome{
      {"fields",
       {{"activities", activities},
        {"schedule_option", args.value("schedule_option", Json(nullptr))}}}};
  if (!args.contains("schedule_option")) return outcome;
  ProfileSchedule schedule;
  const Json& option = args.at("schedule_option");
  read(option, "wait", schedule.wait);
  read(option, "warmup", schedule.warmup);
  read(option, "active", schedule.active);
  read(option, "repeat", schedule.repeat);
  read(option, "skip_first", schedule.skip_first);
  constexpr std::array kNames{"NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"};
  for (std::int64_t step = 0; step < input.at("steps"); ++step) {
    outcome["actions"].push_back(
        kNames.at(static_cast<std::size_t>(profiler_action(schedule, step))));
  }
  return outcome;
}

Json run_megatron(const Json& input) {
  const Json& args = input.at("args");
  MegatronLMOptions given;
  read(args, "tp_degree", given.tp_degree);
  read(args, "pp_degree", given.pp_degree);
  read(args, "context_parallel_size", given.context_parallel_size);
  read(args, "sequence_parallelism", given.sequence_parallelism);
  read(args, "use_distributed_optimizer", given.use_distributed_optimizer);
  read(args, "num_micro_batches", given.num_micro_batches);
  read(args, "gradient_clipping", given.gradient_clipping);
  read(args, "recompute_activations", given.recompute_activations);
  const auto found = detail::resolve_megatron_lm(given, settings_of(input));
  Json fields = Json::object();
#define ACCELERATE_FIELD(name) fields[#name] = json_of(found.name)
  ACCELERATE_FIELD(tp_degree);
  ACCELERATE_FIELD(pp_degree);
  ACCELERATE_FIELD(context_parallel_size);
  ACCELERATE_FIELD(expert_model_parallel_size);
  ACCELERATE_FIELD(expert_tensor_parallel_size);
  ACCELERATE_FIELD(num_micro_batches);
  ACCELERATE_FIELD(gradient_clipping);
  ACCELERATE_FIELD(sequence_parallelism);
  ACCELERATE_FIELD(recompute_activations);
  ACCELERATE_FIELD(recompute_granularity);
  ACCELERATE_FIELD(recompute_method);
  ACCELERATE_FIELD(recompute_num_layers);
  ACCELERATE_FIELD(use_distributed_optimizer);
  ACCELERATE_FIELD(use_custom_fsdp);
  ACCELERATE_FIELD(optimizer_cpu_offload);
  ACCELERATE_FIELD(overlap_cpu_optimizer_d2h_h2d);
  ACCELERATE_FIELD(use_precision_aware_optimizer);
  ACCELERATE_FIELD(no_load_optim);
  ACCELERATE_FIELD(no_save_optim);
  ACCELERATE_FIELD(eod_mask_loss);
  ACCELERATE_FIELD(calculate_per_token_loss);
  ACCELERATE_FIELD(decoder_last_pipeline_num_layers);
  ACCELERATE_FIELD(attention_backend);
  ACCELERATE_FIELD(attention_softmax_in_fp32);
  ACCELERATE_FIELD(use_rotary_position_embeddings);
  ACCELERATE_FIELD(attention_dropout);
  ACCELERATE_FIELD(hidden_dropout);
#undef ACCELERATE_FIELD
  return {{"fields", fields}};
}

}  // namespace topic_plugins

Json run_plugins(const Json& input) {
  using namespace topic_plugins;
  const std::string plugin = input.at("plugin");
  if (plugin == "fsdp") return run_fsdp(input);
  if (plugin == "deepspeed") return run_deepspeed(input);
  if (plugin == "parallelism") return run_parallelism(input);
  if (plugin == "gradient_accumulation")
    return run_gradient_accumulation(input);
  if (plugin == "dataloader") return run_dataloader(input);
  if (plugin == "project") return run_project(input);
  if (plugin == "dynamo") return run_dynamo(input);
  if (plugin == "handler") return run_handler(input);
  if (plugin == "profile") return run_profile(input);
  if (plugin == "megatron") return run_megatron(input);
  throw NotBuilt("plugins: " + plugin);
}

}  // namespace accelerate::oracle
