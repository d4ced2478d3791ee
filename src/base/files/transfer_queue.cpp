#include "base/files/transfer_queue.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/files/scratch_file.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kNumThreads = 4;

bool is_aligned(std::uintptr_t number) {
  return number % ScratchFile::kAlignment == 0;
}

}  // namespace

class TransferQueue::Transfer {
 public:
  std::size_t num_pieces = 0;
  int error = 0;
};

struct TransferQueue::Piece {
  Ticket transfer;
  int direct = -1;
  int plain = -1;
  std::uint64_t offset = 0;
  std::byte* memory = nullptr;
  std::size_t size = 0;
  bool is_write = false;

  [[nodiscard]] bool is_direct() const {
    return direct >= 0 && is_aligned(offset) && is_aligned(size) &&
        is_aligned(reinterpret_cast<std::uintptr_t>(memory));
  }
  [[nodiscard]] int file() const { return is_direct() ? direct : plain; }
};

TransferQueue::TransferQueue(bool may_use_io_uring)
    : ring_(may_use_io_uring ? IoRing::make(kMostInFlight) : nullptr) {
  if (ring_) {
    threads_.emplace_back([this] { collect(); });
    return;
  }
  while (threads_.size() < kNumThreads)
    threads_.emplace_back([this] { work(); });
}

TransferQueue::TransferQueue(Calls calls) : calls_(calls) {
  while (threads_.size() < kNumThreads)
    threads_.emplace_back([this] { work(); });
}

TransferQueue::~TransferQueue() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  asked_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

TransferQueue::Ticket TransferQueue::read(
    const ScratchFile& file,
    std::uint64_t offset,
    std::span<std::byte> memory) {
  return begin(file, offset, memory.data(), memory.size(), false);
}

TransferQueue::Ticket TransferQueue::write(
    const ScratchFile& file,
    std::uint64_t offset,
    std::span<const std::byte> memory) {
  return begin(
      file, offset, const_cast<std::byte*>(memory.data()), memory.size(), true);
}

TransferQueue::Ticket TransferQueue::begin(
    const ScratchFile& file,
    std::uint64_t offset,
    std::byte* memory,
    std::size_t size,
    bool is_write) {
  const auto transfer = std::make_shared<Transfer>();
  const std::lock_guard lock(mutex_);
  for (std::size_t at = 0; at < size; at += kPieceBytes) {
    waiting_.push_back(std::make_unique<Piece>(Piece{
        transfer,
        file.direct(),
        file.plain(),
        offset + at,
        memory + at,
        std::min(kPieceBytes, size - at),
        is_write}));
    ++transfer->num_pieces;
  }
  if (ring_) submit_waiting();
  asked_.notify_all();
  return transfer;
}

int TransferQueue::wait(const Ticket& ticket) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return ticket->num_pieces == 0; });
  return ticket->error;
}

bool TransferQueue::has_ended(const Ticket& ticket) const {
  const std::lock_guard lock(mutex_);
  return ticket->num_pieces == 0;
}

bool TransferQueue::submit(Piece& piece) {
  return piece.is_write
      ? ring_->write(
            piece.file(), {piece.memory, piece.size}, piece.offset, &piece)
      : ring_->read(
            piece.file(), {piece.memory, piece.size}, piece.offset, &piece);
}

// The kernel has the piece until collect() gets it back. One that the kernel
// refuses is moved by this thread.
void TransferQueue::submit_waiting() {
  while (!waiting_.empty() && num_in_flight_ < kMostInFlight) {
    std::unique_ptr<Piece> piece = std::move(waiting_.front());
    waiting_.pop_front();
    if (submit(*piece)) {
      ++num_in_flight_;
      static_cast<void>(piece.release());
      continue;
    }
    const ssize_t result = piece->is_write
        ? calls_.write(
              piece->file(),
              piece->memory,
              piece->size,
              static_cast<off_t>(piece->offset))
        : calls_.read(
              piece->file(),
              piece->memory,
              piece->size,
              static_cast<off_t>(piece->offset));
    end(std::move(piece), result < 0 ? -errno : result);
  }
}

void TransferQueue::end(std::unique_ptr<Piece> piece, ssize_t result) {
  const auto try_again = [&] { waiting_.push_front(std::move(piece)); };
  Transfer& transfer = *piece->transfer;
  if (result == -EINTR || result == -EAGAIN) return try_again();
  if (result == -EINVAL && piece->is_direct()) {
    piece->direct = -1;
    return try_again();
  }
  if (result > 0 && static_cast<std::size_t>(result) < piece->size) {
    piece->offset += static_cast<std::uint64_t>(result);
    piece->memory += result;
    piece->size -= static_cast<std::size_t>(result);
    return try_again();
  }
  if (result <= 0 && transfer.error == 0) {
    transfer.error = result < 0 ? static_cast<int>(-result)
        : piece->is_write       ? EIO
                                : kEndOfFile;
  }
  if (--transfer.num_pieces == 0) ended_.notify_all();
}

void TransferQueue::collect() {
  std::unique_lock lock(mutex_);
  while (true) {
    asked_.wait(lock, [&] { return num_in_flight_ > 0 || is_closing_; });
    if (num_in_flight_ == 0) return;
    lock.unlock();
    const auto [request, result] = ring_->wait();
    lock.lock();
    --num_in_flight_;
    end(std::unique_ptr<Piece>(static_cast<Piece*>(request)), result);
    submit_waiting();
  }
}

void TransferQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    asked_.wait(lock, [&] { return !waiting_.empty() || is_closing_; });
    if (waiting_.empty()) return;
    std::unique_ptr<Piece> piece = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const auto offset = static_cast<off_t>(piece->offset);
    const ssize_t moved = piece->is_write
        ? calls_.write(piece->file(), piece->memory, piece->size, offset)
        : calls_.read(piece->file(), piece->memory, piece->size, offset);
    const ssize_t result = moved < 0 ? -errno : moved;
    lock.lock();
    end(std::move(piece), result);
  }
}

}  // namespace accelerate::detail
