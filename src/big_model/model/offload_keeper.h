#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "gate/gate.h"

namespace accelerate::detail {

/// A keeper of offloaded weights, for code that does not run models. It returns
/// itself from GateKeeper::as_offload_keeper().
class OffloadKeeper : public GateKeeper {
 public:
  OffloadKeeper* as_offload_keeper() final { return this; }

  /// Whether the tensor's values are in host memory or on disk between
  /// forwards, and fetched for a forward.
  [[nodiscard]] virtual bool is_offloaded(std::size_t unit) const = 0;
  /// Fetches an offloaded tensor, which then stays and is an ordinary one until
  /// put_back(). Without a device: to where it is computed with.
  virtual void hold(std::size_t unit, std::optional<c10::Device> device) = 0;
  /// Puts a held tensor back, with the changes that were made to it.
  virtual void put_back(std::size_t unit) = 0;

  /// Keeps the tensor's values in memory for this thread until end_use().
  /// Returns false, with nothing to end, if the thread already uses them or the
  /// tensor is not offloaded.
  virtual bool begin_use(std::size_t unit) = 0;
  virtual void end_use(std::size_t unit) = 0;
};

/// The tensor's keeper, if it keeps offloaded weights, and the tensor's number
/// there.
struct OffloadedUnit {
  OffloadKeeper* keeper = nullptr;
  std::size_t unit = 0;
};

/// Finds the keeper of an offloaded tensor; its `keeper` is null for others.
OffloadedUnit offloaded_unit(const at::Tensor& tensor);

/// While it lives, keeps the offloaded ones of some tensors in memory, for code
/// of this thread that reads memory without LibTorch's operators. Throws what
/// fetching throws.
class OffloadedUse {
 public:
  explicit OffloadedUse(std::initializer_list<at::Tensor> tensors);
  ~OffloadedUse();
  OffloadedUse(const OffloadedUse&) = delete;
  OffloadedUse& operator=(const OffloadedUse&) = delete;

 private:
  std::vector<OffloadedUnit> used_;
};

}  // namespace accelerate::detail
