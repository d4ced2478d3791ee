#include "base/files/direct_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/files/io_ring.h"

namespace accelerate::detail {

/// One piece: the wanted bytes, and the blocks that contain them.
struct DirectReader::Slot {
  Slot() = default;
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  ~Slot() {
    if (memory != nullptr) ::munmap(memory, kPieceBytes);
  }

  // Allocated on first use: pieces that go to their own places need none.
  std::byte* own_memory() {
    if (memory == nullptr) {
      void* const made = ::mmap(
          nullptr,
          kPieceBytes,
          PROT_READ | PROT_WRITE,
          MAP_PRIVATE | MAP_ANONYMOUS,
          -1,
          0);
      if (made == MAP_FAILED) throw std::bad_alloc();
      memory = made;
    }
    return static_cast<std::byte*>(memory);
  }

  void* memory = nullptr;
  std::byte* target = nullptr;  // `memory`, or the bytes' own place
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
DirectReader::~DirectReader() = default;

DirectReader::Slot& DirectReader::slot(std::uint64_t piece) {
  std::unique_ptr<Slot>& one = slots_[piece % kMostPieces];
  if (one == nullptr) one = std::make_unique<Slot>();
  return *one;
}

void DirectReader::start(Slot& slot, const File& file) {
  slot.is_done = false;
  if (ring_ == nullptr) return;
  const bool is_in_flight = ring_->read(
      file.direct, {slot.target, slot.num_bytes}, slot.first_block, &slot);
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
void DirectReader::await(Slot& slot, const File& file) {
  while (!slot.is_done && num_in_flight_ > 0) wait_for_one();
  if (slot.is_done) return;
  slot.result = read_(
      file.direct,
      slot.target,
      slot.num_bytes,
      static_cast<off_t>(slot.first_block));
  if (slot.result < 0) slot.result = -errno;
  slot.is_done = true;
}

// What the file system refuses to read directly, and the rest after a short
// read, comes through the page cache; that call also reports errors.
int DirectReader::complete(Slot& slot, const File& file) const {
  const std::uint64_t known = slot.first_block +
      (slot.result > 0 ? static_cast<std::uint64_t>(slot.result) : 0);
  if (known >= slot.end) return 0;
  const std::uint64_t from = std::max(known, slot.begin);
  return read_all(
      file.plain,
      from,
      {slot.target + (from - slot.first_block), slot.end - from},
      read_);
}

// Chooses the blocks of a piece and where they go.
void DirectReader::lay_out(
    Slot& slot,
    std::uint64_t begin,
    std::uint64_t end,
    const File& file,
    const Place& place) {
  slot.begin = begin;
  slot.end = end;
  slot.first_block = begin / kAlignment * kAlignment;
  slot.num_bytes =
      (end + kAlignment - 1) / kAlignment * kAlignment - slot.first_block;
  std::byte* own = nullptr;
  if (place && begin % kAlignment == 0 && end % kAlignment == 0)
    own = place(begin, slot.num_bytes);
  const bool is_aligned =
      reinterpret_cast<std::uintptr_t>(own) % file.memory_alignment == 0;
  slot.target = own != nullptr && is_aligned ? own : slot.own_memory();
}

int DirectReader::read(
    const File& file,
    std::uint64_t begin,
    std::uint64_t end,
    const Place& place,
    const Take& take) {
  const std::uint64_t last = (end + kPieceBytes - 1) / kPieceBytes;
  const std::uint64_t ahead = ring_ != nullptr ? kMostPieces : 1;
  std::uint64_t next = begin / kPieceBytes;
  std::uint64_t started = next;
  const InFlight in_flight(*this);
  for (; next < last; ++next) {
    for (; started < std::min(last, next + ahead); ++started) {
      lay_out(
          slot(started),
          std::max(begin, started * kPieceBytes),
          std::min(end, (started + 1) * kPieceBytes),
          file,
          place);
      start(slot(started), file);
    }
    Slot& piece = slot(next);
    await(piece, file);
    if (const int error = complete(piece, file)) return error;
    take(
        piece.begin,
        {piece.target + (piece.begin - piece.first_block),
         piece.end - piece.begin});
  }
  return 0;
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
