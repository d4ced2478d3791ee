#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport/shared_memory/memory/host_memory.h"
#include "comm/transport/shared_memory/memory/layout.h"
#include "comm/transport/shared_memory/operations/operation.h"

namespace accelerate::detail {

/// A message to or from one rank, in host memory that must stay valid until it
/// is finished.
class Message final : public Operation {
 public:
  enum class Direction { send, receive };

  Message(Direction direction, int peer, std::int64_t tag, HostMemory memory)
      : direction_(direction),
        peer_(peer),
        tag_(tag),
        memory_(std::move(memory)),
        bytes_(memory_.bytes()) {}

  [[nodiscard]] bool is_message() const override { return true; }
  /// Messages advance in their Mailbox.
  bool advance(Fabric&) override { return false; }
  [[nodiscard]] bool is_complete() const override { return is_complete_; }
  void list_awaited(const Fabric&, std::vector<int>& ranks) const override {
    if (!is_complete_) ranks.push_back(peer_);
  }
  [[nodiscard]] std::string describe() const override;

  [[nodiscard]] Direction direction() const { return direction_; }
  [[nodiscard]] int peer() const { return peer_; }

 private:
  friend class Mailbox;

  Direction direction_;
  int peer_;
  std::int64_t tag_;
  HostMemory memory_;
  std::size_t bytes_;
  std::size_t moved_ = 0;
  bool has_header_ = false;
  bool has_asked_for_room_ = false;
  bool is_complete_ = false;
};

/// The messages of a rank. Between two ranks, they arrive in the order they
/// were sent; those that arrive before their tag is requested are kept in this
/// process's memory.
class Mailbox {
 public:
  explicit Mailbox(int num_ranks)
      : peers_(static_cast<std::size_t>(num_ranks)) {}

  void post(const std::shared_ptr<Message>& message);
  /// Moves what can be moved without waiting, and appends completed messages to
  /// `finished`. Returns whether anything was moved. Throws DisagreementError
  /// if a message and its receiver differ in size.
  bool advance(
      Fabric& fabric,
      std::vector<std::shared_ptr<Operation>>& finished);
  /// Takes all messages that are not complete.
  std::vector<std::shared_ptr<Operation>> take_pending();
  [[nodiscard]] std::vector<std::shared_ptr<Operation>> pending() const;
  [[nodiscard]] bool is_idle() const { return num_pending_ == 0; }
  /// The events that must wake the background thread so that incomplete
  /// messages make progress while no thread waits for them.
  [[nodiscard]] Attention attention() const;

 private:
  // The message being read from a channel: into a receiver's memory, or kept.
  struct Incoming {
    std::int64_t tag = 0;
    std::size_t bytes = 0;
    std::size_t moved = 0;
    std::shared_ptr<Message> receiver = {};
    std::vector<std::byte> kept = {};
  };
  struct Peer {
    std::deque<std::shared_ptr<Message>> sends;
    std::deque<std::shared_ptr<Message>> receives;
    std::unique_ptr<Incoming> incoming;
    std::list<Incoming> early;
  };

  bool send_some(Fabric& fabric, int to);
  static bool ask_for_room(const Fabric& fabric, Message& message);
  bool receive_some(Fabric& fabric, int from);
  void open_incoming(Peer& peer, int from, std::int64_t tag, std::size_t bytes);
  void close_incoming(Peer& peer);
  void take_early(Peer& peer, const std::shared_ptr<Message>& receiver);
  void complete(std::shared_ptr<Message> message);

  std::vector<Peer> peers_;
  std::vector<std::shared_ptr<Operation>> finished_;
  std::size_t num_pending_ = 0;
};

}  // namespace accelerate::detail
