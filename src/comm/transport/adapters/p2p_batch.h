#pragma once

#include <exception>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "comm/transport/transport.h"
#include "comm/transport/unfinished_work.h"

namespace accelerate::detail {

/// Point-to-point messages between this rank and others of a group, without
/// intermediate copies. Both sides name the same tag, which no other message
/// between them uses meanwhile. Tensors are dense, on the host, and must not be
/// touched until wait(). Used by one thread at a time.
class P2PBatch {
 public:
  /// `what` names the batch in errors: "gathering block 3".
  P2PBatch(Group group, std::string what);
  P2PBatch(const P2PBatch&) = delete;
  P2PBatch& operator=(const P2PBatch&) = delete;
  /// Does not wait: the group keeps what peers may still read or write until
  /// that is done, or until it ends itself.
  ~P2PBatch();

  /// Empty tensors are neither sent nor received.
  void send(const at::Tensor& tensor, int to, int tag);
  void receive(const at::Tensor& tensor, int from, int tag);

  /// Throws DistributedError naming the peers that are gone or silent.
  void wait();

 private:
  void start(
      Work (Connection::*direction)(const at::Tensor&, int, int),
      const at::Tensor& tensor,
      int peer,
      int tag);
  // Those from or to which messages have not arrived yet, in the world.
  [[nodiscard]] std::vector<int> awaited() const;
  void note_in_flight(int change) const;
  [[noreturn]] void fail(const std::exception& error) const;

  Group group_;
  std::string what_;
  std::vector<UnfinishedWork> messages_;
  std::vector<int> peers_;  // of the messages, in the world
};

}  // namespace accelerate::detail
