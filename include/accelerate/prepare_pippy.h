#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/pipeline_layers.h>
#include <accelerate/world.h>

namespace accelerate {

/// Options of prepare_pippy(), with Accelerate's names.
struct PreparePippyOptions {
  /// The names of the first layer on each rank except the first. Empty, or
  /// "auto" alone: the layers are divided by their bytes as in Accelerate, or
  /// equally if that would leave ranks without layers.
  std::vector<std::string> split_points = {};
  /// Classes of modules whose children stay together, for "auto". Layers always
  /// stay together.
  std::vector<std::string> no_split_module_classes = {};
  /// Number of micro-batches that a batch is divided into; a batch with fewer
  /// samples has one per sample. More: less idle time, smaller products. Unset:
  /// the number of ranks.
  std::optional<int> num_chunks = std::nullopt;
  /// Give all ranks the output, not only the last one. Costs a broadcast.
  bool gather_output = false;
};

/// A model whose layers are divided among all ranks, for inference. A cheap
/// handle.
class ACCELERATE_API PippyModel {
 public:
  /// Computes a batch on all ranks; collective. The inputs, tensors with
  /// samples along dimension 0, are read on rank 0; other ranks need not pass
  /// any. Returns the outputs on the last rank, or with gather_output on all
  /// ranks; nothing elsewhere. Outputs have no padding, even if num_chunks does
  /// not divide the batch.
  template <class... Inputs>
  PipelineTensors operator()(const Inputs&... inputs) const {
    detail::PipelineValue all;
    if constexpr (sizeof...(Inputs) == 1) {
      (detail::append_to(all, inputs), ...);
    } else if constexpr (sizeof...(Inputs) > 1) {
      detail::append_to(all, std::tuple<Inputs...>(inputs...));
    }
    return run(all);
  }

  /// The first layers on ranks 1, 2 …
  [[nodiscard]] const std::vector<std::string>& hf_split_points() const;
  /// This rank's layers, under their names in the whole model.
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const;

 private:
  friend ACCELERATE_API PippyModel prepare_pippy(
      const World& world,
      const PipelineLayers& layers,
      const PreparePippyOptions& options);
  struct State;

  static std::int64_t agree_on_rows(
      State& state,
      const detail::PipelineValue& inputs);
  [[nodiscard]] PipelineTensors run(const detail::PipelineValue& inputs) const;

  detail::KeptPtr<State> state_;
};

/// Divides a model's layers among all ranks of `world`, for inference: each
/// rank computes its layers, micro-batch by micro-batch. Parameters of other
/// ranks' layers lose their memory. Collective. Throws ConfigError if the
/// layers cannot be divided this way.
///
///     auto model = accelerate::prepare_pippy(accelerator.world(), net);
///     auto output = model(inputs);
ACCELERATE_API PippyModel prepare_pippy(
    const World& world,
    const PipelineLayers& layers,
    const PreparePippyOptions& options = {});

}  // namespace accelerate
