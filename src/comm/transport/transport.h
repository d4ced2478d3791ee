#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <accelerate/log.h>
#include <accelerate/world.h>

namespace accelerate::detail {

/// How messages from one rank to another are matched. `ordered`: in the order
/// they were sent, and a send completes even before its receive is posted.
/// `tagged`: by the tag that both sides pass.
enum class PointToPoint { none, ordered, tagged };

/// What a transport supports by itself. Adapters (adapters.h) supply the rest.
struct TransportFacts {
  std::string name;
  /// Devices whose memory it can read and write.
  std::vector<c10::DeviceType> device_types;
  std::function<bool(at::ScalarType, ReduceOp)> can_reduce;
  PointToPoint point_to_point = PointToPoint::none;
  /// Two threads of a rank can use one connection at once.
  bool is_thread_safe = false;
  /// If ranks make different calls, it fails by itself, naming both calls.
  bool compares_calls = false;
  /// Takes tensors of any strides, even as outputs, and moves any dtype as is.
  bool takes_views = false;
  /// Its exchange() is one operation, not a send() or receive() per message.
  bool has_exchange = false;

  [[nodiscard]] bool has_device(c10::DeviceType device) const;
};

using Work = c10::intrusive_ptr<c10d::Work>;

/// Message tags from here on are reserved: the first for transports and
/// adapters, the others for exchanges.
inline constexpr int kFirstReservedTag = 1 << 30;

/// A tensor that goes to another rank, or comes from it.
struct PeerMessage {
  at::Tensor tensor;
  int peer = 0;
  int tag = 0;
};

/// Messages in flight. Null works are complete; if `sends` is null, it ends
/// with `receives`.
struct BegunMessages {
  Work receives = {};
  Work sends = {};
};

/// Ranks that a transport has connected. All ranks make the same calls in the
/// same order; a failure is thrown by the call or by `wait()` of its work, and
/// ends the connection. If a rank destroys its connection, other ranks'
/// operations that wait for it fail. A work keeps the tensors it needs alive.
///
/// Tensors are contiguous, on one of the transport's devices. Reductions use a
/// dtype and operation that it can reduce; values that are only moved are
/// bytes. adapted() (adapters.h) takes any dense tensor, and passes it on as is
/// if the transport takes views.
class Connection {
 public:
  Connection(int rank, int size) : rank_(rank), size_(size) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  virtual ~Connection() = default;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] virtual const TransportFacts& facts() const = 0;

  /// Reduces in place.
  virtual Work all_reduce(const at::Tensor& tensor, ReduceOp op) = 0;
  /// Reduces in place on rank `dst`; elsewhere `tensor` keeps its values.
  virtual Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) = 0;
  virtual Work broadcast(const at::Tensor& tensor, int src) = 0;
  /// `output` holds the ranks' inputs one after another.
  virtual Work all_gather(
      const at::Tensor& output,
      const at::Tensor& input) = 0;
  /// `outputs`: one per rank on `dst`, none elsewhere.
  virtual Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) = 0;
  /// `output` is this rank's shard of the reduction, cut along dimension 0.
  virtual Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) = 0;
  /// `inputs`: one per rank on `src`, none elsewhere.
  virtual Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) = 0;
  /// The tensors have one dimension; sizes are numbers of elements, one per
  /// rank, or none if all are equal.
  virtual Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) = 0;
  virtual Work barrier() = 0;
  /// Returns when every rank has arrived; throws after `timeout`.
  virtual void monitored_barrier(std::chrono::milliseconds timeout) = 0;

  /// Sends to one rank, if the transport can. `tag` is 0 unless messages are
  /// tagged.
  virtual Work send(const at::Tensor& tensor, int dst, int tag);
  virtual Work receive(const at::Tensor& tensor, int src, int tag);
  /// Begins several messages: contiguous tensors of any dtype, all on the host or
  /// all on devices. Ranks begin their exchanges in the same order, on devices
  /// also those without messages, which pass empty tensors. Messages between two
  /// ranks are in the same order on both, with the same tags.
  virtual BegunMessages exchange(
      const std::vector<PeerMessage>& sends,
      const std::vector<PeerMessage>& receives) {
    return begin_each(sends, receives);
  }
  /// Begins each message by send() or receive(), in any order on other ranks. A
  /// failure is thrown by the works, which own what had begun before it.
  BegunMessages begin_each(
      const std::vector<PeerMessage>& sends,
      const std::vector<PeerMessage>& receives);

  /// Lets begun operations proceed while no thread waits for them. Call it
  /// after beginning work that is waited for much later, or never (futures).
  /// Otherwise a transport may do everything in `wait()`.
  virtual void run_in_background() {}

  /// Throws if what was begun may have ended without a result. To be called once
  /// the host has read a result on which it relies.
  virtual void require_intact() {}

  /// Ends the connection without waiting for what was begun, on other ranks too.
  /// Does nothing where operations end by themselves after a rank has left.
  virtual void abort() noexcept {}

  /// Returns memory, as bytes, that all_reduce() can reduce without copies.
  /// Called like a collective, by all ranks with equal sizes. Undefined, on all
  /// ranks, if the transport has no such memory.
  [[nodiscard]] virtual at::Tensor reducible_memory(std::int64_t /*bytes*/) {
    return {};
  }

  /// Calls `begin_all`, which only begins operations. They start together where
  /// the transport can do that: each is then waited for only after the call.
  virtual void together(const std::function<void()>& begin_all) { begin_all(); }

 private:
  int rank_;
  int size_;
};

/// The ranks to connect, and the store through which they find each other.
struct ConnectRequest {
  /// Used by this group of ranks only.
  c10::intrusive_ptr<c10d::Store> store;
  std::string name;
  int rank = 0;
  /// The members' ranks in the world.
  std::vector<int> world_ranks;
  /// How long operations wait for a silent peer.
  std::chrono::milliseconds timeout{};
  Logger logger = {};
  /// How long operations that no thread waits for, and that the board therefore
  /// does not show, may take before a warning names the ranks that have not
  /// begun them; 0: any time.
  std::chrono::milliseconds hang_threshold{};
};

/// How a World's ranks move and reduce tensors; shared by its connections. Used
/// by one thread at a time.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  [[nodiscard]] virtual const TransportFacts& facts() const = 0;
  /// Called by all ranks of the group at about the same time.
  [[nodiscard]] virtual std::shared_ptr<Connection> connect(
      const ConnectRequest& request) = 0;
  /// Describes a failure of this transport in one line; returns nothing for
  /// exceptions that are not its own.
  [[nodiscard]] virtual std::optional<std::string> describe_failure(
      const std::exception& error) const = 0;
  /// Why operations on devices have ended without a result, if any have. What was
  /// computed from their results since is undefined.
  [[nodiscard]] virtual std::optional<std::string> failure_on_devices() const {
    return std::nullopt;
  }
};

/// Returns the first line of `error`'s message; in LibTorch's, a backtrace
/// follows.
std::string first_line_of(const std::exception& error);

}  // namespace accelerate::detail
