#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/data_loader_configuration.h>
#include <accelerate/data_loader_options.h>
#include <accelerate/detail/loader_link.h>
#include <accelerate/detail/step_parts.h>
#include <accelerate/export.h>
#include <accelerate/log.h>
#include <accelerate/progress.h>
#include <accelerate/state_dict.h>
#include <accelerate/world.h>

namespace accelerate::detail {

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
  /// Pads the last round on a single rank, too, as Accelerate's
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
  /// Where a profile listens.
  std::shared_ptr<const StepSlot> steps = nullptr;
  /// The slot through which checkpoints find the loader.
  std::shared_ptr<LoaderSlot> slot = nullptr;
};

/// `options` with unset fields filled in from `defaults`.
[[nodiscard]] ACCELERATE_API DataLoaderOptions with_defaults(
    DataLoaderOptions options,
    const DataLoaderConfiguration& defaults);

/// Throws the ConfigError for a pass that begins inside another one.
[[noreturn]] ACCELERATE_API void throw_nested_pass(
    std::uint64_t epoch,
    std::int64_t num_batches);

/// Properties of a loader's dataset.
struct DatasetFacts {
  /// Negative if unknown.
  std::int64_t num_samples = -1;
  bool is_stream = false;
  bool is_sharded = false;
};

/// One batch to be read.
struct BatchIndices {
  /// Indices into the dataset.
  std::vector<std::int64_t> indices;
  /// The inputs of seed_at(): the pass's seed, and the position in the order.
  std::uint64_t pass_seed = 0;
  std::int64_t first_position = 0;
  /// Number of real samples in a padded round; otherwise 0.
  std::int64_t remainder = 0;
};

/// The random seed for the sample at a position of the order.
ACCELERATE_API std::uint64_t seed_at(
    std::uint64_t pass_seed,
    std::int64_t position);

class BatchOrder;

/// Decides which samples a rank reads, batch by batch: its own batches, or
/// entire rounds if rank 0 reads for all ranks.
class ACCELERATE_API BatchSource {
 public:
  /// Throws ConfigError for options that are invalid or contradictory.
  BatchSource(const DatasetFacts& dataset, const DataLoaderOptions& options);
  ~BatchSource();
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  /// `dispatches`: rank 0 reads for all ranks, if there are several. Throws
  /// ConfigError if the ranks' loaders disagree, or for options that contradict
  /// each other once the accelerator's defaults are filled in. Collective.
  void attach(LoaderContext context, bool dispatches);
  /// The loader's own options, without defaults.
  [[nodiscard]] const DataLoaderOptions& given() const;
  [[nodiscard]] bool is_dispatching() const;
  [[nodiscard]] const LoaderContext& context() const;
  /// Number of batches of this rank, or of rounds if rank 0 reads for all
  /// ranks.
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t round_size() const;
  /// Number of rows in this rank's batch in a full round.
  [[nodiscard]] std::int64_t rank_batch_size() const;
  /// This rank's share of each round, from 0 to num_shares() - 1.
  [[nodiscard]] int share() const;
  [[nodiscard]] int num_shares() const;
  /// Whether the current pass pads its last round.
  [[nodiscard]] bool fills_up() const;
  [[nodiscard]] std::uint64_t epoch() const;
  void set_epoch(std::uint64_t epoch);
  /// Number of samples, or batches of a batch sampler, that were read before
  /// and that the pass skips.
  [[nodiscard]] std::int64_t first() const;
  [[nodiscard]] StateDict state_dict(std::int64_t num_given, bool has_ended)
      const;
  void load_state_dict(const StateDict& state);

  /// Starts a pass over this number of samples; ends an earlier pass that was
  /// abandoned.
  void begin_pass(std::int64_t num_samples);
  void end_pass() noexcept;
  /// Ends the pass for the loop only: a thread left behind may still request
  /// batches.
  void abandon_pass() noexcept;
  [[nodiscard]] bool is_reading() const;
  /// Batch `index` of the current pass. Throws ConfigError if the sampler
  /// returns an index that the dataset does not have.
  [[nodiscard]] BatchIndices at(std::int64_t index) const;
  /// Seed of the current pass.
  [[nodiscard]] std::uint64_t pass_seed() const;
  /// Called when a batch is about to be handed out.
  void announce(bool is_last, std::int64_t remainder) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accelerate::detail
