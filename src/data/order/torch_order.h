#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <accelerate/detail/loader_context.h>
#include <accelerate/state_dict.h>

namespace accelerate::detail {

/// The passes of a prepared torch::data loader: their order, which its sampler
/// draws from LibTorch's default generator, and the position in the current
/// one. Knows batches only by number.
class TorchOrder {
 public:
  /// `is_reproducible`: the sampler's order depends only on the default
  /// generator. Throws ConfigError for defaults that such a loader cannot
  /// follow.
  void attach(LoaderContext context, bool is_reproducible);
  [[nodiscard]] const LoaderContext& context() const { return context_; }
  [[nodiscard]] bool places_batches() const;
  /// Whether the pass that begins now pads its last round.
  [[nodiscard]] bool fills_up() const;

  /// Begins a pass: calls `draw`, in which the sampler draws its order, with
  /// the default generator seeded from seed and epoch, and restores the
  /// generator afterwards. Throws ConfigError inside a pass.
  void begin_pass(const std::function<void()>& draw);
  void end_pass() noexcept;
  /// Number of batches, over all ranks, that the current pass skips.
  [[nodiscard]] std::int64_t first() const { return first_; }
  /// Counts rounds that are skipped.
  void skip_rounds(std::int64_t num_rounds) { num_rounds_ += num_rounds; }
  /// Called when this rank's next batch is about to be handed out.
  void announce(bool is_last, std::int64_t remainder);

  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }
  void set_epoch(std::uint64_t epoch) { epoch_ = epoch; }
  [[nodiscard]] StateDict state_dict() const;
  [[nodiscard]] std::string load_complaint(const StateDict& state) const;
  void load_state_dict(const StateDict& state);

 private:
  [[nodiscard]] std::uint64_t seed() const;
  [[nodiscard]] bool is_restorable() const;

  LoaderContext context_;
  bool is_reproducible_ = false;
  /// The seed from a loaded state.
  std::optional<std::uint64_t> seed_ = std::nullopt;
  std::uint64_t epoch_ = 0;
  std::int64_t first_ = 0;
  std::int64_t next_first_ = 0;
  /// Rounds of the pass that were handed out or skipped.
  std::int64_t num_rounds_ = 0;
  bool is_reading_ = false;
  bool has_ended_ = false;
};

}  // namespace accelerate::detail
