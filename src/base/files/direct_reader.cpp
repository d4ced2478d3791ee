#include "base/files/direct_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>

#include "base/files/io_ring.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kHugePage = 2U << 20U;
// Huge pages may begin behind the beginning of the memory.
constexpr std::size_t kMemoryBytes =
    DirectReader::kMostPieces * DirectReader::kPieceBytes + kHugePage;

constexpr std::uint64_t block_before(std::uint64_t offset) {
  return offset / DirectReader::kAlignment * DirectReader::kAlignment;
}

constexpr std::uint64_t block_after(std::uint64_t offset) {
  return block_before(offset + DirectReader::kAlignment - 1);
}

}  // namespace

/// A range whose pieces up to `next` have been requested.
struct DirectReader::ActiveRange {
  [[nodiscard]] bool is_requested() const { return next == range.end; }

  Range range;
  std::uint64_t next = 0;
  std::size_t num_in_flight = 0;
  int error = 0;
};

/// One piece: the wanted bytes, and the blocks that contain them.
struct DirectReader::Slot {
  /// Memory for pieces within one block.
  alignas(kAlignment) std::array<std::byte, kAlignment> block;
  std::size_t index = 0;
  ActiveRange* range = nullptr;
  std::byte* target = nullptr;  // memory of the reader, or the bytes' own place
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t first_block = 0;  // offset in the file, aligned
  std::size_t num_bytes = 0;      // of the blocks
  bool is_done = false;
  ssize_t result = 0;
};

/// Waits for reads in flight before their memory may be freed.
class DirectReader::InFlight {
 public:
  explicit InFlight(DirectReader& reader) : reader_(reader) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  ~InFlight() {
    while (reader_.num_in_flight_ > 0) reader_.wait_for_one();
  }

 private:
  DirectReader& reader_;
};

DirectReader::DirectReader(bool may_use_io_uring)
    : ring_(may_use_io_uring ? IoRing::make(kMostPieces) : nullptr),
      read_(::pread) {}
DirectReader::DirectReader(Read call) : read_(call) {}
DirectReader::~DirectReader() {
  if (memory_ != nullptr) ::munmap(memory_, kMemoryBytes);
}

DirectReader::Slot& DirectReader::slot(std::uint64_t piece) {
  std::unique_ptr<Slot>& one = slots_[piece % kMostPieces];
  if (one == nullptr) {
    one = std::make_unique<Slot>();
    one->index = piece % kMostPieces;
  }
  return *one;
}

// Uses huge pages where the system has them: a disk needs several requests for
// a MiB that is scattered over 256 pages. Returns null if out of memory.
std::byte* DirectReader::memory_of(std::uint64_t slot) {
  if (memory_ == nullptr) {
    void* const made = ::mmap(
        nullptr,
        kMemoryBytes,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
        0);
    if (made == MAP_FAILED) return nullptr;
    ::madvise(made, kMemoryBytes, MADV_HUGEPAGE);
    memory_ = made;
  }
  void* first = memory_;
  std::size_t left = kMemoryBytes;
  std::align(kHugePage, kMostPieces * kPieceBytes, first, left);
  return static_cast<std::byte*>(first) + slot * kPieceBytes;
}

void DirectReader::start(Slot& slot) {
  slot.is_done = slot.target == nullptr;
  if (slot.is_done || ring_ == nullptr) return;
  const bool is_in_flight = ring_->read(
      slot.range->range.file->direct,
      {slot.target, slot.num_bytes},
      slot.first_block,
      &slot);
  if (is_in_flight) ++num_in_flight_;
}

void DirectReader::wait_for_one() {
  const auto [request, result] = ring_->wait();
  Slot& slot = *static_cast<Slot*>(request);
  slot.result = result;
  slot.is_done = true;
  --num_in_flight_;
}

// Returns once the piece has arrived or failed. A piece that was not submitted
// is read here.
void DirectReader::await(Slot& slot) {
  while (!slot.is_done && num_in_flight_ > 0) wait_for_one();
  if (slot.is_done) return;
  slot.result = read_(
      slot.range->range.file->direct,
      slot.target,
      slot.num_bytes,
      static_cast<off_t>(slot.first_block));
  if (slot.result < 0) slot.result = -errno;
  slot.is_done = true;
}

// Reads through the page cache whatever the file system refuses to read
// directly, and the rest after a short read; that call also reports errors.
int DirectReader::complete(Slot& slot) const {
  if (slot.target == nullptr) return ENOMEM;
  const std::uint64_t known = slot.first_block +
      (slot.result > 0 ? static_cast<std::uint64_t>(slot.result) : 0);
  if (known >= slot.end) return 0;
  const std::uint64_t from = std::max(known, slot.begin);
  return read_all(
      slot.range->range.file->plain,
      from,
      {slot.target + (from - slot.first_block), slot.end - from},
      read_);
}

// Chooses the next piece of a range and where it goes: complete blocks to their
// own place, without the parts of blocks before and after them, which are pieces
// by themselves then.
void DirectReader::lay_out(Slot& slot) {
  ActiveRange& active = *slot.range;
  const Range& range = active.range;
  slot.begin = active.next;
  slot.end = std::min(range.end, (slot.begin / kPieceBytes + 1) * kPieceBytes);
  const std::uint64_t first = block_after(slot.begin);
  const std::uint64_t last = block_before(slot.end);
  std::byte* own = nullptr;
  if (range.place && first < last) own = range.place(first, last - first);
  if (reinterpret_cast<std::uintptr_t>(own) % range.file->memory_alignment != 0)
    own = nullptr;
  if (own != nullptr) slot.end = first > slot.begin ? first : last;
  slot.first_block = block_before(slot.begin);
  slot.num_bytes = block_after(slot.end) - slot.first_block;
  if (own != nullptr && first == slot.begin) {
    slot.target = own;
  } else {
    slot.target = slot.num_bytes <= kAlignment ? slot.block.data()
                                               : memory_of(slot.index);
  }
  active.next = slot.end;
  ++active.num_in_flight;
}

void DirectReader::read(const NextRange& next) {
  const std::uint64_t most = ring_ != nullptr ? kMostPieces : 1;
  // References to its elements stay valid at both ends.
  std::deque<ActiveRange> ranges;
  std::uint64_t started = 0;
  std::uint64_t taken = 0;
  const InFlight in_flight(*this);
  const auto next_piece = [&]() -> Slot* {
    while (ranges.empty() || ranges.back().is_requested()) {
      std::optional<Range> range = next();
      if (!range) return nullptr;
      if (range->begin >= range->end) {
        if (range->done) range->done(0);
        continue;
      }
      const std::uint64_t begin = range->begin;
      ranges.push_back({std::move(*range), begin});
    }
    Slot& piece = slot(started);
    piece.range = &ranges.back();
    return &piece;
  };
  while (true) {
    while (started - taken < most) {
      Slot* const piece = next_piece();
      if (piece == nullptr) break;
      lay_out(*piece);
      start(*piece);
      ++started;
    }
    if (taken == started) return;
    Slot& piece = slot(taken++);
    ActiveRange& active = *piece.range;
    await(piece);
    --active.num_in_flight;
    if (active.error == 0) active.error = complete(piece);
    if (active.error == 0) {
      active.range.take(
          piece.begin,
          {piece.target + (piece.begin - piece.first_block),
           piece.end - piece.begin});
    } else {
      // Request no more of this range.
      active.next = active.range.end;
    }
    if (!active.is_requested() || active.num_in_flight > 0) continue;
    if (active.range.done) active.range.done(active.error);
    ranges.pop_front();
  }
}

int DirectReader::read(
    const File& file,
    std::uint64_t begin,
    std::uint64_t end,
    const Place& place,
    const Take& take) {
  int result = 0;
  std::optional<Range> only =
      Range{&file, begin, end, place, take, [&](int error) { result = error; }};
  read([&] { return std::exchange(only, std::nullopt); });
  return result;
}

int read_all(
    int file,
    std::uint64_t offset,
    std::span<std::byte> out,
    DirectReader::Read call) {
  while (!out.empty()) {
    const ssize_t got =
        call(file, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (got == 0) return DirectReader::kEndOfFile;
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return 0;
}

std::size_t direct_memory_alignment([[maybe_unused]] int file) {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (::statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0 &&
      status.stx_dio_mem_align != 0) {
    return status.stx_dio_mem_align;
  }
#endif
  return DirectReader::kAlignment;
}

}  // namespace accelerate::detail
