#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/attention.h>
#include <accelerate/export.h>
#include <accelerate/sequence_shards.h>
#include <accelerate/world.h>

namespace accelerate {

/// Options of one division of sequences. All ranks give the same ones.
struct ContextParallelOptions {
  SequenceCut cut = SequenceCut::zigzag;
  /// What each buffer is padded with if the length does not divide, one value
  /// per buffer: for labels the loss's ignore_index (-100), which keeps the
  /// padding out of the loss. Without values such a length is an error.
  std::vector<double> pad_values = {};
  /// The document of each position of the whole sequence, as in
  /// SequenceAttentionOptions, for attention of all layers.
  std::optional<at::Tensor> document_ids = std::nullopt;
  /// Exchange attention heads rather than keys and values: two all-to-alls per
  /// attention (Ulysses). Needs at least as many heads as ranks. Unset: true if
  /// `sp_size` of ParallelismConfig divides the sequence, else false.
  std::optional<bool> exchange_heads = std::nullopt;
  /// How keys and values travel. Unset: what `cp_comm_strategy` of
  /// ParallelismConfig says, else all at once.
  std::optional<KeyValueRotation> rotation = std::nullopt;
  /// Length of the whole sequence, where the program has cut its tensors itself
  /// and gives no buffers.
  std::optional<std::int64_t> sequence_length = std::nullopt;
};

/// Labels of the next positions: those of position i + 1 at i along `dim`, and
/// `ignore_index` at the last one. To be computed before sequences are divided,
/// since a rank's last position has its label on another rank. A copy; throws
/// ConfigError for a scalar or an unknown dimension.
[[nodiscard]] ACCELERATE_API at::Tensor shift_labels(
    const at::Tensor& labels,
    std::int64_t dim = -1,
    std::int64_t ignore_index = -100);

/// While it lives, tensors have this rank's positions of a sequence that is
/// divided among the ranks of a group, and attention on this thread
/// (scaled_dot_product_attention, by whichever module) is that of the whole
/// sequence. What a model computes for each position by itself needs no change;
/// positions must come as a buffer, not be counted by the model. Destroyed on
/// the thread that made it, the innermost first.
class ACCELERATE_API ContextParallelScope {
 public:
  /// Gives each of `buffers` its positions in place, along the dimension of the
  /// same index in `buffer_seq_dims`. The destructor gives back the whole
  /// tensors, but for those that are also in `no_restore_buffers`. Throws
  /// ConfigError, before any is changed, for buffers of different lengths,
  /// buffers that require a gradient, and lengths that need padding if
  /// `pad_values` are missing. With a group of one
  /// rank the buffers stay whole.
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
  /// Those of this rank, 64-bit integers in host memory; from shards().length()
  /// on they are padding.
  [[nodiscard]] at::Tensor positions() const;

  /// The whole sequence along `dim` of what a model made of this rank's
  /// positions, in order and without padding, on every rank: for metrics, before
  /// gather_for_metrics(). Without a gradient. With one rank, the tensor itself,
  /// detached. Throws ConfigError if `tensor` has no such dimension, or another
  /// number of positions along it. Collective among the ranks along `context`.
  [[nodiscard]] at::Tensor gather(const at::Tensor& tensor, std::int64_t dim)
      const;

  /// The mean over the positions of all ranks that a loss is: the sum of `sum`
  /// over the ranks, divided by that of `count`, both scalars. The same value
  /// on all ranks; its gradients, averaged over the ranks as those of every
  /// loss are, are those of one process. Needed where ranks have different
  /// numbers of labels (padding, ignored labels); otherwise each rank's own
  /// mean gives the same gradients. Collective.
  [[nodiscard]] at::Tensor mean(const at::Tensor& sum, const at::Tensor& count)
      const;

 private:
  struct State;

  std::unique_ptr<State> state_;
};

}  // namespace accelerate
