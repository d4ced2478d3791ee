#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "comm/transport/transport.h"

namespace accelerate::detail {

class NotedCallScope;

/// A collective that proceeds while the rank computes, until wait(). All ranks
/// of the group must begin theirs in the same order; other collectives of the
/// group may be begun, and waited for, in the meantime. Tensors must be dense
/// and must not be touched until wait(). Errors are those of the Group's own
/// collectives.
class BegunCollective {
 public:
  /// Nothing to wait for.
  BegunCollective() = default;

  /// Sums in place.
  static BegunCollective all_reduce(
      const Group& group,
      const at::Tensor& tensor);
  /// `output` is this rank's chunk, along dimension 0, of the sum of `input`.
  static BegunCollective reduce_scatter(
      const Group& group,
      const at::Tensor& output,
      const at::Tensor& input);
  /// `output` has an extra leading dimension, of ranks.
  static BegunCollective all_gather(
      const Group& group,
      const at::Tensor& output,
      const at::Tensor& input);

  /// Lets it proceed while no thread waits; call it if wait() comes much later.
  void run_in_background();
  /// Returns when the result is complete; immediately if called before.
  void wait();

 private:
  template <class Begin>
  static BegunCollective
  begin(const Group& group, const char* name, const at::Tensor& what, Begin&&);

  Group group_;
  const char* name_ = "";
  std::uint64_t sequence_ = 0;
  /// The call's entry on the board, until wait() ends.
  std::shared_ptr<NotedCallScope> note_;
  Work work_;
};

}  // namespace accelerate::detail
