#include "comm/transport/shared_memory/operations/messages.h"

#include <algorithm>
#include <cstring>

#include "base/text/text.h"
#include "comm/transport/shared_memory/operations/failure.h"

namespace accelerate::detail {

namespace {

// Precedes each message in its channel. Its size divides a channel's, and
// messages are padded to a multiple of it, so a header never wraps.
struct MessageHeader {
  std::int64_t tag;
  std::uint64_t bytes;
};
constexpr std::size_t kUnit = sizeof(MessageHeader);
// Number of bytes after which the other rank is notified, so that both copy at
// once.
constexpr std::size_t kPortion = std::size_t{64} << 10U;

std::size_t padding_of(std::size_t bytes) {
  return (kUnit - bytes % kUnit) % kUnit;
}

std::byte* ring_of(ChannelHeader& channel) {
  return reinterpret_cast<std::byte*>(&channel + 1);
}

// A ring's bytes from a position on, wrapping around its end.
struct RingBytes {
  RingBytes(
      ChannelHeader& channel,
      std::size_t ring_bytes,
      std::uint64_t position,
      std::size_t bytes)
      : first(ring_of(channel) + position % ring_bytes),
        first_bytes(std::min(
            bytes,
            ring_bytes - static_cast<std::size_t>(position % ring_bytes))),
        second(ring_of(channel)),
        second_bytes(bytes - first_bytes) {}

  void fill(const HostMemory& from, std::size_t begin) const {
    from.copy_out(first, begin, first_bytes);
    from.copy_out(second, begin + first_bytes, second_bytes);
  }
  void read(const HostMemory& to, std::size_t begin) const {
    to.copy_in(begin, first, first_bytes);
    to.copy_in(begin + first_bytes, second, second_bytes);
  }

  std::byte* first;
  std::size_t first_bytes;
  std::byte* second;
  std::size_t second_bytes;
};

[[noreturn]] void throw_other_size(
    int from,
    std::int64_t tag,
    std::size_t sent,
    std::size_t expected) {
  throw DisagreementError(
      from,
      format("receive of {} bytes, tag {}", expected, tag),
      format("send of {} bytes, tag {}", sent, tag));
}

}  // namespace

std::string Message::describe() const {
  const bool is_send = direction_ == Direction::send;
  return format("{} of {} bytes", is_send ? "send" : "receive", bytes_);
}

void Mailbox::post(const std::shared_ptr<Message>& message) {
  Peer& peer = peers_[static_cast<std::size_t>(message->peer_)];
  ++num_pending_;
  if (message->direction_ == Message::Direction::send) {
    peer.sends.push_back(message);
  } else {
    take_early(peer, message);
  }
}

// Gives the receiver a message that arrived before it was posted, or lets it
// wait.
void Mailbox::take_early(Peer& peer, const std::shared_ptr<Message>& receiver) {
  const auto found =
      std::ranges::find(peer.early, receiver->tag_, &Incoming::tag);
  if (found != peer.early.end()) {
    if (found->bytes != receiver->bytes_) {
      throw_other_size(
          receiver->peer_, receiver->tag_, found->bytes, receiver->bytes_);
    }
    receiver->memory_.copy_in(0, found->kept.data(), found->bytes);
    peer.early.erase(found);
    complete(receiver);
    return;
  }
  Incoming* const incoming = peer.incoming.get();
  const bool is_arriving = incoming != nullptr && !incoming->receiver &&
      incoming->tag == receiver->tag_;
  if (!is_arriving) {
    peer.receives.push_back(receiver);
    return;
  }
  if (incoming->bytes != receiver->bytes_) {
    throw_other_size(
        receiver->peer_, receiver->tag_, incoming->bytes, receiver->bytes_);
  }
  receiver->memory_.copy_in(0, incoming->kept.data(), incoming->moved);
  incoming->kept.clear();
  incoming->receiver = receiver;
}

bool Mailbox::advance(
    Fabric& fabric,
    std::vector<std::shared_ptr<Operation>>& finished) {
  bool has_moved = false;
  for (int rank = 0; rank < fabric.size(); ++rank) {
    if (rank == fabric.rank()) continue;
    while (send_some(fabric, rank)) has_moved = true;
    while (receive_some(fabric, rank)) has_moved = true;
  }
  if (!finished_.empty()) {
    finished.insert(finished.end(), finished_.begin(), finished_.end());
    finished_.clear();
    has_moved = true;
  }
  return has_moved;
}

bool Mailbox::send_some(Fabric& fabric, int to) {
  Peer& peer = peers_[static_cast<std::size_t>(to)];
  if (peer.sends.empty()) return false;
  const std::shared_ptr<Message> message = peer.sends.front();
  ChannelHeader& channel = fabric.channel(fabric.rank(), to);
  const std::size_t ring_bytes = fabric.channel_bytes();
  std::uint64_t head = channel.head.load(std::memory_order_relaxed);
  std::size_t room = ring_bytes -
      static_cast<std::size_t>(
                         head - channel.tail.load(std::memory_order_acquire));
  if (!message->has_header_) {
    if (room < kUnit) return ask_for_room(fabric, *message);
    const MessageHeader header{.tag = message->tag_, .bytes = message->bytes_};
    const RingBytes room_for_header(channel, ring_bytes, head, kUnit);
    std::memcpy(room_for_header.first, &header, kUnit);
    message->has_header_ = true;
    head += kUnit;
    room -= kUnit;
  } else if (room == 0) {
    return ask_for_room(fabric, *message);
  }
  // `room` is a multiple of the unit, so the padding fits after the end.
  const std::size_t left = message->bytes_ - message->moved_;
  const std::size_t count = std::min({left, room, kPortion});
  RingBytes(channel, ring_bytes, head, count)
      .fill(message->memory_, message->moved_);
  message->moved_ += count;
  head += count;
  const bool is_sent = message->moved_ == message->bytes_;
  if (is_sent) head += padding_of(message->bytes_);
  fabric.publish_to(
      to,
      channel.head,
      head,
      left > room ? Attention::full_channels : Attention::everything);
  if (is_sent) {
    peer.sends.pop_front();
    complete(message);
  }
  return true;
}

// Called if nothing can be moved: notifies the reader once, since it may have
// slept through everything in the channel.
bool Mailbox::ask_for_room(const Fabric& fabric, Message& message) {
  if (!std::exchange(message.has_asked_for_room_, true))
    fabric.notify(message.peer_, Attention::full_channels);
  return false;
}

bool Mailbox::receive_some(Fabric& fabric, int from) {
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  ChannelHeader& channel = fabric.channel(from, fabric.rank());
  const std::size_t ring_bytes = fabric.channel_bytes();
  std::uint64_t tail = channel.tail.load(std::memory_order_relaxed);
  auto available = static_cast<std::size_t>(
      channel.head.load(std::memory_order_acquire) - tail);
  if (available == 0) return false;
  if (!peer.incoming) {
    MessageHeader header{};
    std::memcpy(
        &header, RingBytes(channel, ring_bytes, tail, kUnit).first, kUnit);
    open_incoming(
        peer, from, header.tag, static_cast<std::size_t>(header.bytes));
    tail += kUnit;
    available -= kUnit;
  }
  Incoming& incoming = *peer.incoming;
  const std::size_t left = incoming.bytes - incoming.moved;
  const std::size_t count = std::min({left, available, kPortion});
  RingBytes(channel, ring_bytes, tail, count)
      .read(
          incoming.receiver
              ? incoming.receiver->memory_
              : HostMemory(incoming.kept.data(), incoming.kept.size()),
          incoming.moved);
  incoming.moved += count;
  tail += count;
  const bool is_received = incoming.moved == incoming.bytes;
  if (is_received) tail += padding_of(incoming.bytes);
  fabric.publish_to(from, channel.tail, tail, Attention::everything);
  if (is_received) close_incoming(peer);
  return true;
}

void Mailbox::open_incoming(
    Peer& peer,
    int from,
    std::int64_t tag,
    std::size_t bytes) {
  peer.incoming =
      std::make_unique<Incoming>(Incoming{.tag = tag, .bytes = bytes});
  const auto found = std::ranges::find_if(
      peer.receives, [&](const auto& each) { return each->tag_ == tag; });
  if (found == peer.receives.end()) {
    peer.incoming->kept.resize(bytes);
    return;
  }
  if ((*found)->bytes_ != bytes)
    throw_other_size(from, tag, bytes, (*found)->bytes_);
  peer.incoming->receiver = *found;
  peer.receives.erase(found);
}

void Mailbox::close_incoming(Peer& peer) {
  const std::unique_ptr<Incoming> incoming = std::move(peer.incoming);
  if (incoming->receiver) {
    complete(incoming->receiver);
  } else {
    peer.early.push_back(std::move(*incoming));
  }
}

void Mailbox::complete(std::shared_ptr<Message> message) {
  message->is_complete_ = true;
  --num_pending_;
  finished_.push_back(std::move(message));
}

Attention Mailbox::attention() const {
  if (num_pending_ == 0) return Attention::nothing;
  const bool has_sends = std::ranges::any_of(
      peers_, [](const Peer& peer) { return !peer.sends.empty(); });
  return has_sends ? Attention::everything : Attention::full_channels;
}

std::vector<std::shared_ptr<Operation>> Mailbox::pending() const {
  std::vector<std::shared_ptr<Operation>> all;
  for (const Peer& peer : peers_) {
    all.insert(all.end(), peer.sends.begin(), peer.sends.end());
    all.insert(all.end(), peer.receives.begin(), peer.receives.end());
    if (peer.incoming && peer.incoming->receiver)
      all.push_back(peer.incoming->receiver);
  }
  return all;
}

std::vector<std::shared_ptr<Operation>> Mailbox::take_pending() {
  std::vector<std::shared_ptr<Operation>> all = pending();
  for (Peer& peer : peers_) {
    peer.sends.clear();
    peer.receives.clear();
    if (peer.incoming) peer.incoming->receiver = nullptr;
  }
  num_pending_ = 0;
  return all;
}

}  // namespace accelerate::detail
