#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel/disk/disk_shards.h"
#include "parallel/shard/shard_unit.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// Steps on the shards of each unit when its gradients are reduced, in the
/// backward that ends a window. The gradients then need no file. (As LOMO does
/// without state: Lv et al., "Full Parameter Fine-tuning for Large Language
/// Models with Limited Resources", ACL 2024.)
class StepsInBackward {
 public:
  /// The arguments must outlive the object. `owner`: whose parts are stepped
  /// on.
  StepsInBackward(
      const std::vector<std::unique_ptr<ShardUnit>>& units,
      DiskShards& disk,
      Strategy& owner)
      : units_(units),
        disk_(disk),
        owner_(owner),
        has_stepped_(units.size(), false) {}

  void use(const ModelCalls& calls) { calls_ = calls; }
  /// Called before a backward. `syncs`: gradients are reduced.
  void begin(bool syncs);
  /// Called when the shards of a unit have their gradients. Throws ConfigError
  /// if it has been stepped on since the last end_step().
  void on_reduced(std::size_t unit);
  /// Called when an optimizer has stepped on what is left.
  void end_step() { has_stepped_.assign(units_.size(), false); }

 private:
  [[nodiscard]] std::vector<at::Tensor> locals_of(std::size_t unit) const;

  const std::vector<std::unique_ptr<ShardUnit>>& units_;
  DiskShards& disk_;
  Strategy& owner_;
  ModelCalls calls_;
  bool steps_ = false;
  std::vector<bool> has_stepped_;  // by unit
};

}  // namespace accelerate::detail
