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
/// intermediate copies. Both sides pass the same tag, which no other message in
/// flight between them may use. Tensors are dense and must not be touched until
/// wait(); those of a device travel through host memory. Used by one thread at
/// a time.
class P2PBatch {
 public:
  /// `what` names the batch in errors, such as "gathering block 3".
  P2PBatch(Group group, std::string what);
  P2PBatch(const P2PBatch&) = delete;
  P2PBatch& operator=(const P2PBatch&) = delete;
  /// Does not wait: the group keeps memory that peers may still read or write
  /// until they are done, or until the group ends.
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
  // World ranks of peers with unfinished messages.
  [[nodiscard]] std::vector<int> awaited() const;
  void note_in_flight(int change) const;
  [[noreturn]] void fail(const std::exception& error) const;

  Group group_;
  std::string what_;
  std::vector<UnfinishedWork> messages_;
  std::vector<int> peers_;  // of each message, as world ranks
};

}  // namespace accelerate::detail
