#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/attention.h>
#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/sequence_shards.h>
#include <accelerate/world.h>

namespace accelerate {

/// How sequences are divided among ranks. All ranks must pass the same options.
struct ContextParallelOptions {
  /// How positions are assigned to ranks. `contiguous` is for programs that
  /// need neighbouring positions on one rank.
  SequenceCut cut = SequenceCut::zigzag;
  /// What each buffer is padded with if the length does not divide, one value
  /// per buffer: for labels the loss's ignore_index (-100), which keeps the
  /// padding out of the loss. Without values such a length is an error.
  std::vector<double> pad_values = {};
  /// The document of each position of the whole sequence, as in
  /// SequenceAttentionOptions, for the attention of all layers.
  std::optional<at::Tensor> document_ids = std::nullopt;
  /// Exchange attention heads rather than keys and values: two all-to-alls per
  /// attention (Ulysses), which send less than the ring over many ranks. Needs
  /// at least as many heads as ranks. Unset: true if `sp_size` of
  /// ParallelismConfig is above 1, else false.
  std::optional<bool> exchange_heads = std::nullopt;
  /// How keys and values are exchanged. Unset: what `cp_comm_strategy` of
  /// ParallelismConfig says, else all at once.
  std::optional<KeyValueRotation> rotation = std::nullopt;
  /// Length of the whole sequence, if the program divides its tensors itself
  /// and passes no buffers.
  std::optional<std::int64_t> sequence_length = std::nullopt;
};

/// Returns the labels of the next positions: that of position i + 1 at i along
/// `dim`, and `ignore_index` at the last. Call it before sequences are divided,
/// since the label for a rank's last position is on another rank. Returns a
/// copy; throws ConfigError for a scalar or an unknown dimension.
[[nodiscard]] ACCELERATE_API at::Tensor shift_labels(
    const at::Tensor& labels,
    std::int64_t dim = -1,
    std::int64_t ignore_index = -100);

/// While it lives, tensors hold this rank's positions of a sequence that is
/// divided among the ranks of a group, and attention on this thread
/// (scaled_dot_product_attention, in any module) covers the whole sequence.
/// Position-wise computations need no change; the model must take positions
/// from a buffer, not count them. Must be destroyed on the thread that made it,
/// innermost first.
class ACCELERATE_API ContextParallelScope {
 public:
  /// Cuts each of `buffers` in place to this rank's positions, along the
  /// dimension of the same index in `buffer_seq_dims`. The destructor restores
  /// the full tensors, except those in `no_restore_buffers`. Throws
  /// ConfigError, before changing any, for buffers of different lengths,
  /// buffers that require a gradient, and lengths that need padding if
  /// `pad_values` are missing. With a group of one rank, buffers stay whole.
  ContextParallelScope(
      const Group& group,
      const std::vector<at::Tensor>& buffers,
      const std::vector<std::int64_t>& buffer_seq_dims,
      const std::vector<at::Tensor>& no_restore_buffers = {},
      const ContextParallelOptions& options = {});
  ContextParallelScope(ContextParallelScope&&) noexcept;
  ContextParallelScope& operator=(ContextParallelScope&&) = delete;
  ~ContextParallelScope();

  /// Which positions each rank has.
  [[nodiscard]] const SequenceShards& shards() const;
  /// This rank's positions, 64-bit integers in host memory; those from
  /// shards().length() on are padding.
  [[nodiscard]] at::Tensor positions() const;

  /// Gathers a model's results for the whole sequence along `dim`, in order and
  /// without padding, on every rank: for metrics, before gather_for_metrics().
  /// Records no gradient. With one rank, returns the tensor itself, detached.
  /// Throws ConfigError if `tensor` has no such dimension, or a different
  /// number of positions along it. Collective among the ranks along `context`.
  [[nodiscard]] at::Tensor gather(const at::Tensor& tensor, std::int64_t dim)
      const;

  /// A loss as the mean over the positions of all ranks: the sum of `sum` over
  /// the ranks divided by the sum of `count`, both scalars. The value is the
  /// same on all ranks; its gradients, averaged over the ranks like those of
  /// any loss, equal those of one process. Needed where ranks have different
  /// numbers of labels (padding, ignored labels); otherwise each rank's own
  /// mean gives the same gradients. Collective.
  [[nodiscard]] at::Tensor mean(const at::Tensor& sum, const at::Tensor& count)
      const;

 private:
  struct State;

  detail::MovedCheck<detail::OwnedPtr<State>, "ContextParallelScope"> state_;
};

}  // namespace accelerate
