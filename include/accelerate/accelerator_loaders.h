#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <accelerate/accelerator_processes.h>
#include <accelerate/data_loader.h>
#include <accelerate/data_loader_configuration.h>
#include <accelerate/export.h>
#include <accelerate/random.h>

namespace accelerate {

/// Loaders and their defaults; a base class of Accelerator. Settings apply to
/// loaders prepared afterwards that leave the option unset. All ranks must set
/// the same values.
class ACCELERATE_API AcceleratorLoaders : public AcceleratorProcesses {
 public:
  [[nodiscard]] const DataLoaderConfiguration& dataloader_config() const;
  void set_dataloader_config(const DataLoaderConfiguration& config) const;
  [[nodiscard]] bool split_batches() const;
  void set_split_batches(bool split_batches) const;
  [[nodiscard]] std::optional<bool> dispatch_batches() const;
  void set_dispatch_batches(std::optional<bool> dispatch_batches) const;
  /// Does not reflect what join_uneven_inputs() sets for passes inside it.
  [[nodiscard]] bool even_batches() const;
  void set_even_batches(bool even_batches) const;
  [[nodiscard]] bool use_seedable_sampler() const;
  void set_use_seedable_sampler(bool use_seedable_sampler) const;
  [[nodiscard]] bool non_blocking() const;
  void set_non_blocking(bool non_blocking) const;
  [[nodiscard]] bool use_stateful_dataloader() const;
  void set_use_stateful_dataloader(bool use_stateful_dataloader) const;
  /// Whether models and batches are moved to the device, unless their own
  /// options say otherwise.
  [[nodiscard]] bool device_placement() const;
  /// The generators that are synchronised when a pass begins.
  [[nodiscard]] const std::vector<RNGType>& rng_types() const;

  /// The next pass over a prepared loader, without the first `num_batches`
  /// batches of each rank.
  template <class Loader>
  SkippedBatches<Loader> skip_first_batches(
      Loader& loader,
      std::int64_t num_batches = 0) const {
    return accelerate::skip_first_batches(loader, num_batches);
  }

 protected:
  using AcceleratorProcesses::AcceleratorProcesses;
};

}  // namespace accelerate
