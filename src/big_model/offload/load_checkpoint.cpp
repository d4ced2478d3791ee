#include <accelerate/load_checkpoint.h>

#include <optional>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>
#include <accelerate/module_tensors.h>
#include <accelerate/weights.h>

#include "base/text/text.h"
#include "big_model/offload/checkpoint_loader.h"
#include "big_model/offload/checkpoint_plan.h"
#include "big_model/offload/checkpoint_tensor_reader.h"
#include "params/model_modules.h"

namespace accelerate {

namespace {

namespace fs = std::filesystem;
using detail::format;
using detail::TensorInCheckpoint;
using detail::TensorToLoad;

void require_usable(const LoadCheckpointOptions& options) {
  if (!options.full_state_dict) {
    throw ConfigError(
        "[big_model] full_state_dict is false, but only a prepared model has "
        "shards: load into it with Accelerator::load_model()");
  }
  if (options.broadcast_from_rank0 && !options.group) {
    throw ConfigError(
        "[big_model] broadcast_from_rank0 needs the ranks that load together: "
        "pass their group, such as accelerator.world().group()");
  }
  if (options.dtype && !at::isFloatingType(*options.dtype)) {
    throw ConfigError(format(
        "[big_model] dtype must be floating-point, but is {}",
        c10::toString(*options.dtype)));
  }
}

}  // namespace

void load_checkpoint_in_model(
    torch::nn::Module& model,
    const fs::path& checkpoint,
    const LoadCheckpointOptions& options) {
  require_usable(options);
  const at::NoGradGuard no_grad;
  detail::CheckpointTensorReader reader(
      options.broadcast_from_rank0 ? options.group : std::nullopt);
  LoadModelOptions reading;
  reading.rename = options.rename;
  const std::vector<TensorInCheckpoint> saved =
      reader.open(checkpoint, reading);
  if (!options.device_map.empty()) {
    static_cast<void>(check_tied_parameters_on_same_device(
        detail::tied_parameters(detail::module_tree(model)),
        options.device_map));
  }
  std::vector<TensorToLoad> plan =
      detail::plan_loading(model, saved, checkpoint.string(), options);
  for (TensorToLoad& item : plan) item.stored = reader.find(item.name);
  detail::CheckpointLoader(reader, options).load(plan);
}

}  // namespace accelerate
