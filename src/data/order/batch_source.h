#pragma once

#include <cstdint>
#include <memory>

#include <accelerate/data_loader_configuration.h>
#include <accelerate/data_loader_options.h>
#include <accelerate/detail/loaded_batch.h>
#include <accelerate/detail/loader_context.h>
#include <accelerate/state_dict.h>

namespace accelerate::detail {

/// `options` with unset fields filled in from `defaults`.
[[nodiscard]] DataLoaderOptions with_defaults(
    DataLoaderOptions options,
    const DataLoaderConfiguration& defaults);

/// Throws the ConfigError for a pass that begins inside another one.
[[noreturn]] void throw_nested_pass(
    std::uint64_t epoch,
    std::int64_t num_batches);

/// Properties of a loader's dataset.
struct DatasetFacts {
  /// Negative if unknown.
  std::int64_t num_samples = -1;
  bool is_stream = false;
  bool is_sharded = false;
};

/// The random seed for the sample at a position of the order.
std::uint64_t seed_at(std::uint64_t pass_seed, std::int64_t position);

class BatchOrder;

/// Decides which samples a rank reads, batch by batch: its own batches, or
/// entire rounds if rank 0 reads for all ranks.
class BatchSource {
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
