#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include "comm/exchange.h"
#include "parallel/shard_unit.h"

namespace accelerate::detail {

/// Gradients of a unit's parameters on their way to the ranks that keep them,
/// once a backward: each large one by itself as soon as it is complete, the
/// others at the end. Parameters are known by their place in `trainable`. Sums
/// run in the order of the ranks, so results do not depend on timing.
class UnitReduction {
 public:
  /// The references must outlive it. `first_tag`: as ShardUnit's.
  UnitReduction(
      const std::string& name,
      const ShardGroups& groups,
      const std::vector<ShardedParameter>& parameters,
      const std::vector<std::size_t>& trainable,
      const ShardPools& pools,
      int first_tag);
  ~UnitReduction();

  /// A message of its own; else it travels with the rest.
  [[nodiscard]] bool is_large(std::size_t place) const;
  /// Takes the gradient of a large parameter, or zeros, and begins to copy it
  /// to the host.
  void take(std::size_t place);
  /// Sends what was taken.
  void send(std::size_t place);
  [[nodiscard]] bool is_taken(std::size_t place) const;
  /// Sends the small ones, after all the large, which completes the unit. `mark` goes with them.
  void send_rest(std::uint64_t mark);
  [[nodiscard]] bool is_complete() const { return is_complete_; }

  /// Waits for the others' and adds them up.
  void finish(std::size_t place);
  /// Waits for the rest, and adds the means over the group to the parts'
  /// gradients; a parameter that no rank used gets none. Returns whether all
  /// ranks' marks are alike. The next backward may begin.
  bool finish_rest();

  /// After a failure: what is under way is left alone.
  void abandon();

 private:
  struct Large;

  [[nodiscard]] const ShardedParameter& parameter(std::size_t place) const {
    return parameters_[trainable_[place]];
  }
  void begin_anew();
  [[nodiscard]] at::Tensor take_gradient(std::size_t place);
  /// Of one part a rank; takes what memory it needs from `parts`.
  [[nodiscard]] at::Tensor mean_of(
      const ShardedParameter& parameter,
      std::vector<at::Tensor>& parts) const;
  [[nodiscard]] int tag(std::size_t message) const;

  const std::string& name_;
  const ShardGroups& groups_;
  const std::vector<ShardedParameter>& parameters_;
  const std::vector<std::size_t>& trainable_;
  const ShardPools& pools_;
  int first_tag_;

  std::uint64_t round_ = 0;
  bool is_complete_ = false;
  /// By place; null for the small, and before they are taken.
  std::vector<std::unique_ptr<Large>> large_;
  /// By place, of this rank's rows.
  std::vector<at::Tensor> sums_;
  std::vector<std::uint8_t> was_used_;
  std::unique_ptr<Exchange> rest_;
  std::vector<at::Tensor> sent_packs_, packs_;  // one a rank
};

}  // namespace accelerate::detail
