#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/parallel.h>
#include <accelerate/state_dict.h>

namespace accelerate::detail {

using FutureTensor = c10::intrusive_ptr<c10::ivalue::Future>;

/// The ranks whose gradients are summed, and the divisor of the sum.
struct ReductionContext {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  double divisor = 1;

  [[nodiscard]] int num_ranks() const { return process_group->getSize(); }
};

/// Turns a bucket of gradients into their mean over the ranks. Buckets are
/// reduced in the order of their indices, the same on all ranks.
class GradientReduction {
 public:
  GradientReduction() = default;
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;
  virtual ~GradientReduction() = default;

  /// Returns a future of the bucket's buffer with the result.
  virtual FutureTensor reduce(
      c10d::GradBucket& bucket,
      const ReductionContext& context) = 0;
  /// True if later reductions depend on earlier ones. The state differs per
  /// rank.
  [[nodiscard]] virtual bool has_state() const { return false; }
  [[nodiscard]] virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}
};

/// Names of parameters, by tensor.
using NameOf = std::function<const std::string&(const at::Tensor&)>;

/// Returns what is wrong with the options; nothing if they can be honoured.
std::optional<std::string> validate_reduction(const ReplicateOptions& options);

/// Returns the reduction that the options select; plain averaging for
/// CommHook::none.
std::unique_ptr<GradientReduction> make_reduction(
    const ReplicateOptions& options,
    NameOf name_of);

/// Sums the tensor over the ranks, in place.
FutureTensor sum_over_ranks(
    const at::Tensor& tensor,
    const ReductionContext& context);

}  // namespace accelerate::detail
