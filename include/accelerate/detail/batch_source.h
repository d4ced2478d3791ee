#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/data_loader_options.h>
#include <accelerate/detail/loader_link.h>
#include <accelerate/export.h>
#include <accelerate/log.h>
#include <accelerate/state_dict.h>
#include <accelerate/world.h>

namespace accelerate::detail {

/// The information that prepare() gives a loader.
struct LoaderContext {
  int batch_rank = 0;
  int batch_count = 1;
  at::Device device = at::kCPU;
  std::uint64_t seed = 0;
  /// All ranks, and the batch rank of each, for dispatching.
  Group group = {};
  std::vector<int> batch_ranks = {0};
  /// Called when a pass begins; when a batch is about to be handed out (whether
  /// it is the last of the pass, and how many samples of its round are real, if
  /// that was filled up); and when the pass ends, or was left.
  std::function<void()> begin = nullptr;
  std::function<void(bool is_last, std::int64_t remainder)> on_batch = nullptr;
  std::function<void()> end = nullptr;
  /// Fill up the last round on a single rank, too, as Accelerate's shards do
  /// when they are used directly.
  bool fills_up_alone = false;
  /// For passes that begin now; overrides the loader's own option.
  std::function<std::optional<bool>()> even_batches = nullptr;
  Logger logger = {};
  /// Through it, checkpoints find the loader.
  std::shared_ptr<LoaderSlot> slot = nullptr;
};

/// The facts that a loader knows about its dataset.
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
  /// Seeds of a sample's own random numbers: the pass, and the position in the
  /// order.
  std::uint64_t pass_seed = 0;
  std::int64_t first_position = 0;
  /// Number of real samples of its round if that was filled up; else 0.
  std::int64_t remainder = 0;
};

/// The seed for random numbers of what is read at a position of the order.
ACCELERATE_API std::uint64_t seed_at(
    std::uint64_t pass_seed,
    std::int64_t position);

class BatchOrder;

/// Decides which samples a rank reads, batch by batch: its own, or, where rank
/// 0 reads for all, those of entire rounds.
class ACCELERATE_API BatchSource {
 public:
  /// Throws ConfigError for options that are invalid or contradictory.
  BatchSource(const DatasetFacts& dataset, const DataLoaderOptions& options);
  ~BatchSource();
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  /// Called with the loaders of all ranks. Throws ConfigError if they disagree.
  void attach(LoaderContext context, bool is_dispatching);
  [[nodiscard]] bool is_dispatching() const;
  [[nodiscard]] const LoaderContext& context() const;
  /// Number of batches of this rank, or of rounds where rank 0 reads for all.
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
  /// Number of samples, or of batches of a batch sampler, that the pass skips
  /// at its beginning because they were read before.
  [[nodiscard]] std::int64_t first() const;
  [[nodiscard]] StateDict state_dict(std::int64_t num_given, bool has_ended)
      const;
  void load_state_dict(const StateDict& state);

  /// Starts a pass over this number of samples; ends one that was left.
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
