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
#include "parallel/context/attention_scope.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Lets torch::nn::MultiheadAttention, whose code computes attention itself,
/// attend to a sequence that ranks divide: keys and values are projected from
/// this rank's positions and then gathered, in the order of the sequence and
/// without padding, while queries stay those of this rank. Masks must have this
/// rank's rows and the columns of the whole sequence.
///
/// Watches the weights of the projections. Keys of another number than this
/// rank's positions are those of a sequence that every rank has, as in
/// AttentionScope, and stay as they are.
class AttentionLayers final
    : public GateKeeper,
      public std::enable_shared_from_this<AttentionLayers> {
 public:
  /// Watches the projections of a MultiheadAttention, as the first of their
  /// keepers. They must have the shapes that a forward sees. `name` is the
  /// module's.
  void watch(const std::string& name, const torch::nn::Module& module);

  void call(GatedCall& call) override;

 private:
  enum class Role {
    /// The weight of the projections of queries, keys and values.
    joint_weight,
    /// That of keys, values, or both.
    key_value_weight,
    /// Queries, keys and values of this rank, side by side.
    projected,
  };
  struct Watched {
    Role role = Role::joint_weight;
    std::string layer;
    /// The shape of a weight in a forward; for `projected` its last dimension.
    std::vector<std::int64_t> shape;
  };

  [[nodiscard]] std::optional<std::size_t> unit_of(
      const c10::IValue& value) const;
  std::size_t add(Role role, const std::string& layer, at::IntArrayRef shape);
  void watch_as(const at::Tensor& tensor, std::size_t unit);
  /// The sequence of which a projection's input has this rank's positions;
  /// nothing if every rank has all of it.
  [[nodiscard]] std::optional<DividedSequence> sequence_of(
      std::int64_t length,
      const Watched& watched);
  [[nodiscard]] bool project(GatedCall& call);
  [[nodiscard]] bool slice_weight(GatedCall& call);
  [[nodiscard]] bool divide_projected(GatedCall& call);

  std::vector<Watched> watched_;
  std::mutex mutex_;
  /// The last sequences that were divided, by the positions of a rank, for
  /// forwards that are recomputed on threads of backward.
  std::map<std::int64_t, DividedSequence> sequences_;
};

}  // namespace accelerate::detail
