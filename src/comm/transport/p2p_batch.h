#pragma once

#include <exception>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Tensors under way between this rank and others of a group, straight from
/// where they are to where they belong. Both sides name the same tag, which no
/// other exchange between them uses meanwhile. Tensors are dense, on the host,
/// and must not be touched until wait(). Used by one thread at a time.
class ACCELERATE_API P2PBatch {
 public:
  /// `what` is said when it fails: "gathering block 3".
  P2PBatch(Group group, std::string what);
  P2PBatch(const P2PBatch&) = delete;
  P2PBatch& operator=(const P2PBatch&) = delete;
  /// Does not wait: memory that a peer may still write to is never freed.
  ~P2PBatch();

  /// Nothing is sent of an empty tensor, and nothing expected.
  void send(const at::Tensor& tensor, int to, int tag);
  void receive(const at::Tensor& tensor, int from, int tag);

  /// Throws DistributedError naming the peers that are gone or silent.
  void wait();

 private:
  struct Message {
    Work work;
    at::Tensor tensor;
  };

  void start(
      Work (Connection::*direction)(const at::Tensor&, int, int),
      const at::Tensor& tensor,
      int peer,
      int tag);
  [[noreturn]] void fail(const std::exception& error) const;

  Group group_;
  std::string what_;
  std::vector<Message> messages_;
};

}  // namespace accelerate::detail
