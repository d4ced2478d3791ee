#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accelerate/big_model.h>

#include "big_model/tiers/keeper/tier_keeper.h"
#include "gate/following.h"
#include "gate/watched_tensor.h"

namespace accelerate {

/// State owned by a Dispatch.
struct Dispatch::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { unwatch(); }

  void unwatch() {
    for (const at::Tensor& tensor : watched)
      detail::unwatch_tensor(tensor, this);
    watched.clear();
  }

  DeviceMap map;
  c10::Device main_device = c10::kCPU;
  std::vector<std::string> skip_keys;
  std::vector<at::Tensor> watched;
  /// Set for a model on several devices.
  std::optional<detail::Following> following;
  /// Null if nothing is offloaded.
  std::shared_ptr<detail::TierKeeper> keeper;
};

}  // namespace accelerate
