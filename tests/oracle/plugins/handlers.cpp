#include <algorithm>
#include <array>

#include "base/text/text.h"
#include "comm/rendezvous/timeout.h"
#include "oracle/plugins/plugins.h"

namespace accelerate::oracle::topic_plugins {

namespace {

// The settings of torch.compile, which only the launcher has.
Json dynamo_fields(const Settings& settings) {
  const bool fixes_shapes = settings.is_given("dynamo_use_dynamic");
  return {
      {"backend", json_of(settings.text("dynamo_backend"))},
      {"mode", json_of(settings.text("dynamo_mode"))},
      {"fullgraph", settings.boolean("dynamo_use_fullgraph")},
      {"dynamic",
       fixes_shapes ? Json(settings.boolean("dynamo_use_dynamic"))
                    : Json(nullptr)},
      {"use_regional_compilation",
       settings.boolean("dynamo_use_regional_compilation")}};
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

constexpr std::array kHooks{
    "NO",
    "FP16",
    "BF16",
    "POWER_SGD",
    "BATCHED_POWER_SGD"};

// Visits the fields of PowerSGD's state by PyTorch's names.
template <class Options, class Visit>
void visit_power_sgd(Options& options, const Visit& visit) {
  visit("matrix_approximation_rank", options.matrix_approximation_rank);
  visit("start_powerSGD_iter", options.start_power_sgd_iter);
  visit("min_compression_rate", options.min_compression_rate);
  visit("use_error_feedback", options.use_error_feedback);
  visit("warm_start", options.warm_start);
  visit("orthogonalization_epsilon", options.orthogonalization_epsilon);
  visit("random_seed", options.random_seed);
}

Json replicate_fields(const ReplicateOptions& options) {
  Json state = Json::object(), defaults = Json::object();
  visit_power_sgd(options.power_sgd, [&](const char* name, auto value) {
    state[name] = value;
  });
  const PowerSGDOptions plain;
  visit_power_sgd(
      plain, [&](const char* name, auto value) { defaults[name] = value; });
  return {
      {"broadcast_buffers", options.broadcast_buffers},
      {"bucket_cap_mb", options.bucket_bytes >> 20},
      {"find_unused_parameters", options.find_unused_parameters},
      {"gradient_as_bucket_view", options.gradient_as_bucket_view},
      {"static_graph", options.static_graph},
      {"comm_hook", kHooks.at(static_cast<std::size_t>(options.comm_hook))},
      {"comm_wrapper",
       kHooks.at(static_cast<std::size_t>(options.comm_wrapper))},
      {"comm_state_option", differing(state, defaults)}};
}

template <class Hook>
void read_hook(const Json& args, const char* name, Hook last, Hook& field) {
  if (!args.contains(name)) return;
  const std::string word = detail::to_upper(args.at(name).get<std::string>());
  const auto end = kHooks.begin() + static_cast<int>(last) + 1;
  const auto found = std::find(kHooks.begin(), end, word);
  if (found == end) throw ConfigError("no hook is called " + word);
  field = static_cast<Hook>(found - kHooks.begin());
}

ReplicateOptions replicate_options(const Json& args) {
  ReplicateOptions options;
  read(args, "broadcast_buffers", options.broadcast_buffers);
  if (args.contains("bucket_cap_mb"))
    options.bucket_bytes = args.at("bucket_cap_mb").get<std::int64_t>() << 20;
  read(args, "find_unused_parameters", options.find_unused_parameters);
  read(args, "gradient_as_bucket_view", options.gradient_as_bucket_view);
  read(args, "static_graph", options.static_graph);
  read_hook(args, "comm_hook", CommHook::batched_power_sgd, options.comm_hook);
  read_hook(args, "comm_wrapper", CommWrapper::bf16, options.comm_wrapper);
  if (args.contains("comm_state_option")) {
    const Json& state = args.at("comm_state_option");
    visit_power_sgd(options.power_sgd, [&](const char* name, auto& field) {
      read(state, name, field);
    });
  }
  return options;
}

// The backend decides the default, but is not a field here.
Json process_group_fields(const Json& args) {
  const Json backend = args.value("backend", Json("nccl"));
  const auto seconds =
      detail::default_timeout(backend == "nccl" ? at::kCUDA : at::kCPU);
  double timeout = static_cast<double>(seconds.count());
  read(args, "timeout", timeout);
  return {{"timeout", timeout}};
}

}  // namespace

Json run_dynamo(const Json& input) {
  const Json found = dynamo_fields(settings_of(
      input,
      {{"backend", "dynamo_backend"},
       {"mode", "dynamo_mode"},
       {"fullgraph", "dynamo_use_fullgraph"},
       {"dynamic", "dynamo_use_dynamic"},
       {"use_regional_compilation", "dynamo_use_regional_compilation"}}));
  Json fields = found;
  fields["backend"] = detail::to_upper(found.at("backend").get<std::string>());
  Json kwargs = differing(found, dynamo_fields(detail::resolve({})));
  kwargs.erase("use_regional_compilation");
  return {{"fields", fields}, {"to_dict", found}, {"to_kwargs", kwargs}};
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
    fields = replicate_fields(replicate_options(args));
    defaults = replicate_fields({});
  } else if (handler == "init_process_group") {
    fields = process_group_fields(args);
    defaults = process_group_fields(Json::object());
  } else {
    throw NotBuilt("handler " + handler);
  }
  return {{"fields", fields}, {"to_kwargs", differing(fields, defaults)}};
}

}  // namespace accelerate::oracle::topic_plugins
