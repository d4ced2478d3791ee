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

/// The information that prepare() gives a loader.
struct LoaderContext {
  int batch_rank = 0;
  int batch_count = 1;
  at::Device device = at::kCPU;
  std::uint64_t seed = 0;
  /// The accelerator's defaults for options that the loader leaves unset.
  DataLoaderConfiguration defaults = {};
  /// Whether batches go to the device unless the loader says otherwise, and
  /// what prepare_data_loader() was told, which overrides the loader.
  bool places_by_default = true;
  std::optional<bool> device_placement = std::nullopt;
  /// Seeds the order of a torch::data loader, the same on all ranks. False: its
  /// sampler draws from LibTorch's default generator as it is.
  bool seeds_order = true;
  /// All ranks, and the batch rank of each, for dispatching.
  Group group = {};
  std::vector<int> batch_ranks = {0};
  /// Called when a pass begins; before a batch is handed out (`remainder` is
  /// the number of real samples of a round that was filled up, else 0); and
  /// when the pass ends or is left.
  std::function<void()> begin = nullptr;
  std::function<void(bool is_last, std::int64_t remainder)> on_batch = nullptr;
  std::function<void()> end = nullptr;
  /// Fills up the last round on a single rank, too, as Accelerate's
  /// BatchSamplerShard does when it is used directly.
  bool fills_up_alone = false;
  /// Overrides the loader's own option for passes that begin now.
  std::function<std::optional<bool>()> even_batches = nullptr;
  /// Leaves each of a batch's tensors with this rank's positions, for loaders that
  /// divide sequences.
  std::function<void(
      const BatchSequences& sequences,
      const std::vector<at::Tensor*>& tensors)>
      divide = nullptr;
  Logger logger = {};
  /// How the bars of long waits look on this rank.
  ProgressOptions progress = {.disable = true};
  /// Where a profile listens.
  std::shared_ptr<const StepSlot> steps = nullptr;
  /// The slot through which checkpoints find the loader.
  std::shared_ptr<LoaderSlot> slot = nullptr;
};

/// `options` with what they leave unset from `defaults`.
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
  /// Indices in the dataset.
  std::vector<std::int64_t> indices;
  /// The inputs of seed_at(): the pass's seed, and the position in the order.
  std::uint64_t pass_seed = 0;
  std::int64_t first_position = 0;
  /// Number of real samples of a round that was filled up; else 0.
  std::int64_t remainder = 0;
};

/// The seed for the random numbers of the sample at a position of the order.
ACCELERATE_API std::uint64_t seed_at(
    std::uint64_t pass_seed,
    std::int64_t position);

class BatchOrder;

/// Decides which samples a rank reads, batch by batch: those of its own
/// batches, or, if rank 0 reads for all, those of entire rounds.
class ACCELERATE_API BatchSource {
 public:
  /// Throws ConfigError for options that are invalid or contradictory.
  BatchSource(const DatasetFacts& dataset, const DataLoaderOptions& options);
  ~BatchSource();
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  /// `dispatches`: rank 0 reads for all, if there are several. Collective.
  /// Throws ConfigError if the loaders of the ranks disagree, or for options
  /// that contradict each other with the accelerator's defaults.
  void attach(LoaderContext context, bool dispatches);
  /// The loader's own options, without defaults.
  [[nodiscard]] const DataLoaderOptions& given() const;
  [[nodiscard]] bool is_dispatching() const;
  [[nodiscard]] const LoaderContext& context() const;
  /// Number of batches of this rank, or of rounds if rank 0 reads for all.
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t round_size() const;
  /// Number of rows of this rank's batch in a full round.
  [[nodiscard]] std::int64_t rank_batch_size() const;
  /// This rank's share of each round, from 0 to num_shares() - 1.
  [[nodiscard]] int share() const;
  [[nodiscard]] int num_shares() const;
  /// Whether the pass under way fills up its last round.
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
  /// left.
  void begin_pass(std::int64_t num_samples);
  void end_pass() noexcept;
  /// Ends the pass for the loop only: a thread left behind may still ask for
  /// batches.
  void abandon_pass() noexcept;
  [[nodiscard]] bool is_reading() const;
  /// Batch `index` of the pass under way. Throws ConfigError if the sampler
  /// gives an index that the dataset does not have.
  [[nodiscard]] BatchIndices at(std::int64_t index) const;
  /// Seed of the pass under way.
  [[nodiscard]] std::uint64_t pass_seed() const;
  /// Called when a batch is about to be handed out.
  void announce(bool is_last, std::int64_t remainder) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accelerate::detail
