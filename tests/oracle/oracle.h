#pragma once

#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

namespace accelerate::oracle {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

/// Thrown for a kind of case that its topic does not support yet; the case
/// counts as failed.
struct NotBuilt : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Thrown for a case that needs something this machine lacks; such cases are
/// counted separately.
struct Skipped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Runs one case's input and returns an outcome in the form of the recorded
/// one. A topic takes OrderedJson if the order of an object's values matters,
/// and otherwise Json.
using Topic = std::function<Json(const OrderedJson& input)>;

/// The supported topics, by name.
const std::map<std::string, Topic>& topics();

Json run_big_model_dispatch(const Json& input);
Json run_checkpoint_rotation(const Json& input);
Json run_checkpoints(const Json& input);
Json run_config_files(const Json& input);
Json run_device_map(const Json& input);
Json run_fp8(const Json& input);
Json run_fsdp_policy(const Json& input);
Json run_launch_env(const Json& input);
Json run_merge_weights(const Json& input);
Json run_parallelism(const Json& input);
Json run_plugins(const Json& input);
Json run_profiler_logging(const Json& input);
Json run_quantization(const Json& input);
Json run_sizes(const Json& input);
Json run_accumulation(const Json& input);
Json run_find_executable_batch_size(const Json& input);
Json run_dispatcher(const Json& input);
Json run_iterable_dataset_shard(const Json& input);
Json run_seedable_sampler(const Json& input);
Json run_skip_first_batches(const Json& input);
Json run_gather_for_metrics(const Json& input);
Json run_local_sgd(const Json& input);
Json run_grad_scaler(const Json& input);
Json run_shard_checkpoint(const Json& input);
Json run_scheduler_stepping(const Json& input);
Json run_batch_sampler_shard(const Json& input);
Json run_lr_schedulers(const Json& input);
Json run_operations(const Json& input);
Json run_safetensors_bad(const Json& input);
Json run_tp_pp(const Json& input);
Json run_trackers(const OrderedJson& input);
Json run_training(const Json& input);

at::ScalarType dtype_named(const std::string& name);
std::string name_of(at::ScalarType dtype);
at::Tensor read_tensor(const Json& json);
Json write_tensor(const at::Tensor& tensor);

struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

/// The first difference, as a path with both values; nothing if they agree.
std::optional<std::string>
difference(const Json& found, const Json& expected, const Tolerance& tolerance);

}  // namespace accelerate::oracle
