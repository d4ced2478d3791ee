#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "gate/gate.h"
#include "gate/weight_product.h"
#include "parallel/attention/attention_layer.h"
#include "parallel/context/attention_scope.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

class Strategy;

/// Lets ranks compute torch::nn::MultiheadAttention together. The module's code
/// computes attention itself, with sizes from its options and its input, so it
/// gets placeholders with the sizes of a single process (Projection,
/// AttentionCall), and returns what this rank computed.
///
/// If ranks divide the sequence, queries, keys and values are those of this
/// rank's positions, and attention is computed in a ring or by exchanging heads
/// (ring_attention, ulysses_attention). Masks must have this rank's rows and
/// the columns of the whole sequence, without padding. If there are more or
/// fewer keys than this rank has positions, they belong to a sequence that
/// every rank has, as in AttentionScope, and stay as they are.
///
/// If ranks split the projections by heads, each rank attends with its own
/// heads.
class AttentionLayers final
    : public GateKeeper,
      public std::enable_shared_from_this<AttentionLayers> {
 public:
  /// Watches the projections of a MultiheadAttention, as their first keeper,
  /// unless already done. They must have the shapes that a forward sees. `name`
  /// is the module's.
  void watch(
      const std::string& name,
      const torch::nn::Module& module,
      const std::optional<SplitHeads>& split = std::nullopt,
      bool out_takes_heads = false);

  /// While parameters are full (full_parameters()), layers are not split.
  void set_full(bool is_full) { is_full_ = is_full; }

  void call(GatedCall& call) override;

 private:
  enum class Role { projection, bias };
  struct Watched {
    Role role = Role::projection;
    std::shared_ptr<const AttentionLayer> layer;
    /// The shape of the tensor in a forward.
    std::vector<std::int64_t> shape;
    /// How many of queries, keys and values the tensor projects to.
    std::int64_t num_parts = 1;
    /// True if queries are among them.
    bool has_queries = false;
  };

  [[nodiscard]] std::optional<std::size_t> unit_of(
      const c10::IValue& value) const;
  std::size_t add(Watched watched);
  void watch_as(const at::Tensor& tensor, std::size_t unit);
  void watch_joint(
      const torch::nn::Module& module,
      const std::shared_ptr<const AttentionLayer>& layer);
  void watch_separate(
      const torch::nn::Module& module,
      const std::shared_ptr<const AttentionLayer>& layer);
  /// The sequence whose local positions a projection's input holds; nothing if
  /// every rank has the whole sequence.
  [[nodiscard]] std::optional<DividedSequence> sequence_of(
      std::int64_t length,
      const Watched& watched);
  [[nodiscard]] bool may_be_divided();
  [[nodiscard]] bool project(GatedCall& call);
  void take_own_rows(
      GatedCall& call,
      const WeightProduct& product,
      const AttentionLayer& layer) const;
  [[nodiscard]] bool slice(GatedCall& call);
  void slice_bias(GatedCall& call, const Watched& bias) const;

  std::vector<Watched> watched_;
  bool is_full_ = false;
  std::mutex mutex_;
  /// The most recently divided sequences, by number of positions per rank, for
  /// forwards recomputed on backward threads.
  std::map<std::int64_t, DividedSequence> sequences_;
};

/// Context parallelism: the ranks along the axis have the same parameters and
/// different positions of the same sequences. `replicate` or `shard` averages
/// their gradients, and AttentionScope handles attention; this strategy only
/// says what such a model cannot do.
std::unique_ptr<Strategy> make_context();

}  // namespace accelerate::detail
