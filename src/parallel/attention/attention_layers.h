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

/// Lets ranks compute torch::nn::MultiheadAttention together, whose code computes
/// attention itself, with sizes that it takes from its options and its input: it
/// gets placeholders with the sizes of one process (Projection, AttentionCall),
/// and returns what this rank computed.
///
/// On a sequence that ranks divide, queries, keys and values are those of this
/// rank's positions, and a ring, or an exchange of heads, attends (ring_attention,
/// ulysses_attention). Masks must have this rank's rows and the columns of the
/// whole sequence, without padding. Keys of another number than this rank's
/// positions are those of a sequence that every rank has, as in AttentionScope,
/// and stay as they are.
///
/// If ranks split its projections by heads, each attends with its own.
class AttentionLayers final
    : public GateKeeper,
      public std::enable_shared_from_this<AttentionLayers> {
 public:
  /// Watches the projections of a MultiheadAttention, as the first of their
  /// keepers, unless that has been done. They must have the shapes that a
  /// forward sees. `name` is the module's.
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
    /// How many of queries, keys and values it projects to.
    std::int64_t num_parts = 1;
    /// Queries are among them.
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
  /// The sequence of which a projection's input has this rank's positions;
  /// nothing if every rank has all of it.
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
  /// The last sequences that were divided, by the positions of a rank, for
  /// forwards that are recomputed on threads of backward.
  std::map<std::int64_t, DividedSequence> sequences_;
};

}  // namespace accelerate::detail
