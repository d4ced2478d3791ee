#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace accelerate::detail {

/// Memory written by different ranks is on different cache lines.
inline constexpr std::size_t kCacheLine = 64;

/// What a rank is about to do, for comparison with the other ranks.
struct CollectiveStamp {
  /// Number of dimensions whose sizes are compared; further ones are merged
  /// into the last.
  static constexpr std::size_t kMostDims = 8;

  std::uint64_t sequence = 0;  ///< number of the collective on its connection
  std::uint64_t bytes = 0;     ///< of this rank's input
  std::int32_t root = -1;
  std::uint8_t kind = 0;   ///< CollectiveKind
  std::uint8_t dtype = 0;  ///< at::ScalarType
  std::uint8_t op = 0;     ///< ReduceOp, for reductions
  std::uint8_t num_dims = 0;
  std::array<std::int64_t, kMostDims> sizes{};

  friend bool operator==(const CollectiveStamp&, const CollectiveStamp&) =
      default;
};

/// What other ranks need to know about a rank's part in a collective, and what
/// may differ between ranks.
struct CollectiveNote {
  /// Location of the values in memory that all ranks map (SharedBlocks); a
  /// negative block if they are not there.
  std::int64_t block = -1;
  std::uint64_t offset = 0;
  /// The most bytes that the rank sends to any other, in an all_to_all.
  std::uint64_t longest = 0;
};

/// Whether a rank takes part in the connection.
enum class PageState : std::uint32_t { absent, open, closed };

/// The events for which a rank is woken while none of its threads waits.
enum class Attention : std::uint32_t {
  nothing,
  /// Messages that do not fit into their channel. Others stay there until a
  /// thread waits for them.
  full_channels,
  everything
};

/// Written by one rank, read by all. Zeroed memory is a valid page.
struct RankPage {
  /// Collectives are sequences of steps, counted over all collectives of a
  /// connection. These are the numbers of steps for which this rank has written
  /// its slot, has reduced its part, and will no longer read any slot.
  alignas(kCacheLine) std::atomic<std::uint64_t> written;
  std::atomic<std::uint64_t> combined;
  std::atomic<std::uint64_t> done;

  /// Changes at every event for which a waiting thread may be asleep.
  alignas(kCacheLine) std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> is_asleep;
  /// Changes at every event for the background thread, which sleeps while no
  /// thread waits. While a thread waits, `attention` is nothing.
  std::atomic<std::uint32_t> background_bell;
  std::atomic<Attention> attention;

  alignas(kCacheLine) std::atomic<PageState> state;
  std::atomic<std::int64_t> process;
  /// Why the rank closed its connection, zero-terminated; empty if nothing
  /// failed. Valid once `state` is closed.
  std::array<char, 240> last_output;

  /// The collectives that began with a step of even and odd number, valid once
  /// `written` counts that step.
  struct Call {
    CollectiveStamp stamp;
    CollectiveNote note;
  };
  alignas(kCacheLine) std::array<Call, 2> calls;
};

/// A ring buffer from one rank to another. `head` and `tail` count the bytes
/// written and read; the bytes follow the header in memory.
struct ChannelHeader {
  alignas(kCacheLine) std::atomic<std::uint64_t> head;
  alignas(kCacheLine) std::atomic<std::uint64_t> tail;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// The layout of a segment: one page per rank, two slots per rank (for even and
/// odd steps), one channel per pair of ranks.
class SegmentLayout {
 public:
  static constexpr std::size_t kSlotBytes = std::size_t{256} << 10U;

  explicit SegmentLayout(int num_ranks)
      : num_ranks_(static_cast<std::size_t>(num_ranks)),
        channel_bytes_(
            num_ranks <= 16 ? std::size_t{256} << 10U
                            : std::size_t{32} << 10U) {}

  [[nodiscard]] std::size_t total_bytes() const {
    return channels_begin() + num_ranks_ * num_ranks_ * channel_stride();
  }
  [[nodiscard]] std::size_t channel_bytes() const { return channel_bytes_; }

  [[nodiscard]] RankPage& page(std::byte* segment, int rank) const {
    return *reinterpret_cast<RankPage*>(
        segment + kHeaderBytes + index(rank) * sizeof(RankPage));
  }
  [[nodiscard]] std::byte*
  slot(std::byte* segment, int rank, std::uint64_t step) const {
    return segment + slots_begin() +
        (2 * index(rank) + static_cast<std::size_t>(step % 2)) * kSlotBytes;
  }
  [[nodiscard]] ChannelHeader& channel(std::byte* segment, int from, int to)
      const {
    return *reinterpret_cast<ChannelHeader*>(
        segment + channels_begin() +
        (index(from) * num_ranks_ + index(to)) * channel_stride());
  }

 private:
  static constexpr std::size_t kSystemPage = 4096;
  static constexpr std::size_t kHeaderBytes = kSystemPage;

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] std::size_t slots_begin() const {
    const std::size_t end = kHeaderBytes + num_ranks_ * sizeof(RankPage);
    return (end + kSystemPage - 1) / kSystemPage * kSystemPage;
  }
  [[nodiscard]] std::size_t channels_begin() const {
    return slots_begin() + 2 * num_ranks_ * kSlotBytes;
  }
  [[nodiscard]] std::size_t channel_stride() const {
    return sizeof(ChannelHeader) + channel_bytes_;
  }

  std::size_t num_ranks_;
  std::size_t channel_bytes_;
};

}  // namespace accelerate::detail
