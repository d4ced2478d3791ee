#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/machine/shared_segment.h"
#include "comm/transport/shared_memory/memory/layout.h"
#include "comm/transport/shared_memory/memory/shared_blocks.h"
#include "comm/transport/shared_memory/waiting/futex.h"

namespace accelerate::detail {

/// One rank's view of what the ranks of a connection share. Used by one thread
/// at a time, except for ring() and blocks().
class Fabric {
 public:
  Fabric(SharedSegment segment, int rank, int size)
      : segment_(std::move(segment)), layout_(size), rank_(rank), size_(size) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::size_t channel_bytes() const {
    return layout_.channel_bytes();
  }

  [[nodiscard]] RankPage& page(int rank) const {
    return layout_.page(segment_.data(), rank);
  }
  [[nodiscard]] RankPage& own_page() const { return page(rank_); }
  [[nodiscard]] std::byte* slot(int rank, std::uint64_t step) const {
    return layout_.slot(segment_.data(), rank, step);
  }
  [[nodiscard]] ChannelHeader& channel(int from, int to) const {
    return layout_.channel(segment_.data(), from, to);
  }

  /// Sets a counter of this rank, and wakes the ranks that may be waiting for
  /// it.
  void publish(std::atomic<std::uint64_t>& counter, std::uint64_t value) const {
    counter.store(value);
    for (int peer = 0; peer < size_; ++peer)
      notify(peer, Attention::everything);
  }
  /// Publishes a counter that only `reader` reads, which is woken if it sleeps
  /// with at least this attention.
  void publish_to(
      int reader,
      std::atomic<std::uint64_t>& counter,
      std::uint64_t value,
      Attention least) const {
    counter.store(value);
    notify(reader, least);
  }

  /// Wakes a peer's sleeping thread if it waits, or if its attention is at
  /// least `least`. Sequentially consistent, as are the sleeper's stores of
  /// is_asleep and `attention` before it checks once more: at least one side
  /// sees the other.
  void notify(int peer, Attention least) const {
    if (peer == rank_) return;
    const RankPage& other = page(peer);
    if (other.is_asleep.load() != 0) {
      ring(peer);
    } else if (other.attention.load() >= least) {
      ring_in_background(peer);
    }
  }

  /// Wakes a rank's waiting thread, or keeps it from falling asleep.
  void ring(int rank) const { ring(page(rank).doorbell); }
  /// Wakes a rank's background thread, which sleeps while no thread waits.
  void ring_in_background(int rank) const { ring(page(rank).background_bell); }

  /// Wakes the waiting and background threads of all other ranks.
  void ring_all() const {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      ring(peer);
      ring_in_background(peer);
    }
  }

  /// The first step of a collective that begins now, after all others have
  /// completed.
  [[nodiscard]] std::uint64_t next_step() const { return next_step_; }
  void set_next_step(std::uint64_t step) { next_step_ = step; }
  std::uint64_t take_sequence() { return next_sequence_++; }

  SharedSegment& segment() { return segment_; }
  SharedBlocks& blocks() { return blocks_; }

 private:
  static void ring(std::atomic<std::uint32_t>& bell) {
    bell.fetch_add(1);
    futex_wake(bell);
  }

  SharedSegment segment_;
  SegmentLayout layout_;
  SharedBlocks blocks_;
  int rank_;
  int size_;
  std::uint64_t next_step_ = 0;
  std::uint64_t next_sequence_ = 1;
};

}  // namespace accelerate::detail
