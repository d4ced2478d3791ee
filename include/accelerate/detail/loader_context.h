#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/data_loader_configuration.h>
#include <accelerate/log.h>
#include <accelerate/progress.h>
#include <accelerate/world.h>

namespace accelerate::detail {

struct LoaderSlot;
struct StepSlot;

/// What prepare() tells a loader.
struct LoaderContext {
  int batch_rank = 0;
  int batch_count = 1;
  at::Device device = at::kCPU;
  std::uint64_t seed = 0;
  /// The accelerator's defaults for options that the loader leaves unset.
  DataLoaderConfiguration defaults = {};
  /// Whether batches go to the device unless the loader says otherwise, and the
  /// argument of prepare_data_loader(), which overrides the loader.
  bool places_by_default = true;
  std::optional<bool> device_placement = std::nullopt;
  /// Seeds the order of a torch::data loader, the same on all ranks. If false,
  /// its sampler draws from LibTorch's default generator as it is.
  bool seeds_order = true;
  /// All ranks, and the batch rank of each, for dispatching.
  Group group = {};
  std::vector<int> batch_ranks = {0};
  /// Called when a pass begins; before a batch is handed out (`remainder` is
  /// the number of real samples in a padded round, otherwise 0); and when the
  /// pass ends or is abandoned.
  std::function<void()> begin = nullptr;
  std::function<void(bool is_last, std::int64_t remainder)> on_batch = nullptr;
  std::function<void()> end = nullptr;
  /// Also pads the last round on a single rank, as Accelerate's
  /// BatchSamplerShard does when used directly.
  bool fills_up_alone = false;
  /// Overrides the loader's own option for passes that begin now.
  std::function<std::optional<bool>()> even_batches = nullptr;
  /// Reduces each of a batch's tensors to this rank's positions, for loaders
  /// that split sequences.
  std::function<void(
      const BatchSequences& sequences,
      const std::vector<at::Tensor*>& tensors)>
      divide = nullptr;
  Logger logger = {};
  /// How the progress bars of long waits look on this rank.
  ProgressOptions progress = {.disable = true};
  /// The slot through which a profile observes the loader.
  std::shared_ptr<const StepSlot> steps = nullptr;
  /// The slot through which checkpoints find the loader.
  std::shared_ptr<LoaderSlot> slot = nullptr;
};

}  // namespace accelerate::detail
