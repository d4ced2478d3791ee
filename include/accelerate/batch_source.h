#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/data_loader_options.h>
#include <accelerate/export.h>
#include <accelerate/loader_link.h>
#include <accelerate/log.h>
#include <accelerate/state_dict.h>
#include <accelerate/world.h>

namespace accelerate::detail {

/// What prepare() tells a loader.
struct LoaderContext {
  int batch_rank = 0;
  int batch_count = 1;
  at::Device device = at::kCPU;
  std::uint64_t seed = 0;
  /// All ranks, and each one's batch rank, for dispatching.
  Group group = {};
  std::vector<int> batch_ranks = {0};
  /// A pass begins; a batch is about to be handed out (the last of the pass?
  /// how many of its round's samples are real, if it was filled up); the pass
  /// ends, or was left.
  std::function<void()> begin = nullptr;
  std::function<void(bool is_last, std::int64_t remainder)> on_batch = nullptr;
  std::function<void()> end = nullptr;
  /// Fill the last round up on a single rank too, as Accelerate's shards do
  /// when they are used directly.
  bool fills_up_alone = false;
  /// Of passes that begin now, in place of the loader's own option.
  std::function<std::optional<bool>()> even_batches = nullptr;
  Logger logger = {};
  /// How checkpoints find the loader.
  std::shared_ptr<LoaderSlot> slot = nullptr;
};

/// What a loader knows of its dataset.
struct DatasetFacts {
  /// Below 0: unknown.
  std::int64_t num_samples = -1;
  bool is_stream = false;
  bool is_sharded = false;
};

/// One batch to be read.
struct BatchIndices {
  /// In the dataset.
  std::vector<std::int64_t> indices;
  /// What a sample's own random numbers are seeded with: the pass, and its place
  /// in the order.
  std::uint64_t pass_seed = 0;
  std::int64_t first_position = 0;
  /// Real samples of its round if that was filled up; else 0.
  std::int64_t remainder = 0;
};

/// For the random numbers of what is read at a position of the order.
ACCELERATE_API std::uint64_t seed_at(
    std::uint64_t pass_seed,
    std::int64_t position);

class BatchOrder;

/// Which samples a rank reads, batch by batch: its own ones, or, where rank 0
/// reads for all, those of whole rounds.
class ACCELERATE_API BatchSource {
 public:
  /// Throws ConfigError for options that are impossible or contradict.
  BatchSource(const DatasetFacts& dataset, const DataLoaderOptions& options);
  ~BatchSource();
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  /// With the loaders of all ranks. Throws ConfigError if they disagree.
  void attach(LoaderContext context, bool is_dispatching);
  [[nodiscard]] bool is_dispatching() const;
  [[nodiscard]] const LoaderContext& context() const;
  /// Batches of this rank, or rounds where rank 0 reads for all.
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t round_size() const;
  /// Rows of this rank's batch in a full round.
  [[nodiscard]] std::int64_t rank_batch_size() const;
  /// This rank's part of each round, from 0 to num_shares() - 1.
  [[nodiscard]] int share() const;
  [[nodiscard]] int num_shares() const;
  /// What the pass under way does with its last round.
  [[nodiscard]] bool fills_up() const;
  [[nodiscard]] std::uint64_t epoch() const;
  void set_epoch(std::uint64_t epoch);
  /// Samples, or batches of a batch sampler, that the pass leaves out at its
  /// beginning, because they were read before.
  [[nodiscard]] std::int64_t first() const;
  [[nodiscard]] StateDict state_dict(std::int64_t num_given, bool has_ended)
      const;
  void load_state_dict(const StateDict& state);

  /// Starts a pass over so many samples; ends one that was left.
  void begin_pass(std::int64_t num_samples);
  void end_pass() noexcept;
  /// Ends it for the loop only: a thread left behind may still ask for batches.
  void abandon_pass() noexcept;
  [[nodiscard]] bool is_reading() const;
  /// Batch `index` of the pass under way. Throws ConfigError if the sampler
  /// gives an index that the dataset does not have.
  [[nodiscard]] BatchIndices at(std::int64_t index) const;
  /// Of the pass under way.
  [[nodiscard]] std::uint64_t pass_seed() const;
  /// A batch is about to be handed out.
  void announce(bool is_last, std::int64_t remainder) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accelerate::detail
