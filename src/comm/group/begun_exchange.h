#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Throws in place of the DistributedError for a transport's failure.
using ThrowFailure = std::function<void(const std::exception&)>;

/// Messages or a collective that proceed while the rank computes, until wait().
/// Tensors are dense and must not be touched until then; for tensors on a
/// device, wait() has its current stream wait, not the host. Errors are
/// DistributedErrors that name the ranks that are gone or silent, thrown when
/// beginning or by wait(). Used by one thread at a time; movable.
class BegunExchange {
 public:
  /// An exchange with nothing to wait for.
  BegunExchange();
  BegunExchange(BegunExchange&&) noexcept;
  BegunExchange& operator=(BegunExchange&&) noexcept;
  /// Does not wait: the group keeps memory that peers may still read or write
  /// until they are done, or until the group ends.
  ~BegunExchange();

  /// Begins messages that other ranks may begin in any order, those of a device
  /// through host memory. Both sides pass the same tag, which no other message
  /// in flight between them may use. Empty tensors are neither sent nor
  /// received. `what` names them in errors, such as "gathering block 3".
  static BegunExchange messages(
      const Group& group,
      std::string what,
      std::vector<PeerMessage> sends,
      std::vector<PeerMessage> receives,
      ThrowFailure throw_failure = nullptr);
  /// Begins an exchange, which all ranks of the group begin in the same order,
  /// even those without messages in it, which pass empty tensors. Tensors of a
  /// device go from device to device if the transport can do that. Two ranks have the same messages for each
  /// other in the same order, in host memory at most 4, and no tags. Tensors are
  /// contiguous.
  static BegunExchange exchange(
      const Group& group,
      std::string what,
      std::vector<PeerMessage> sends,
      std::vector<PeerMessage> receives,
      ThrowFailure throw_failure = nullptr);

  // Collectives, which all ranks of the group begin in the same order; others of
  // the group may be begun, and waited for, in the meantime.

  /// Sums in place.
  static BegunExchange all_reduce(const Group& group, const at::Tensor& tensor);
  /// `output` is this rank's chunk, along dimension 0, of the sum of `input`.
  static BegunExchange reduce_scatter(
      const Group& group,
      const at::Tensor& output,
      const at::Tensor& input);
  /// `output` has an extra leading dimension, of ranks.
  static BegunExchange all_gather(
      const Group& group,
      const at::Tensor& output,
      const at::Tensor& input);

  /// Calls `begin_all`, which only begins collectives and exchanges. They start
  /// together where the transport can do that, and are waited for after the call.
  /// Called by all ranks alike.
  static void together(
      const Group& group,
      const std::function<void()>& begin_all);

  /// Whether wait() would not wait.
  [[nodiscard]] bool is_complete() const;
  /// Lets a collective proceed while no thread waits, as messages always do;
  /// call it if wait() comes much later.
  void run_in_background();
  /// Waits until received tensors can be read; sent ones are still in use.
  void wait_for_receives();
  /// Returns at once if called before.
  void wait();

 private:
  struct State;
  explicit BegunExchange(std::unique_ptr<State> state);
  template <class Begin>
  static BegunExchange begin_collective(
      const Group& group,
      const char* name,
      const at::Tensor& what,
      Begin&& begin);

  std::unique_ptr<State> state_;
};

/// Whether exchanges of tensors on `device` go from device to device: not on the
/// CPU, nor where the transport takes host memory only, or stages through it.
bool connects_devices(const Group& group, at::Device device);

}  // namespace accelerate::detail
