#include "base/files/direct_writer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/files/io_ring.h"

namespace accelerate::detail {

struct DirectWriter::Block {
  Block()
      : memory(::mmap(
            nullptr,
            kBlockBytes,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS,
            -1,
            0)) {
    if (memory == MAP_FAILED) throw std::bad_alloc();
    // Reduces first-touch faults where the system has huge pages.
    ::madvise(memory, kBlockBytes, MADV_HUGEPAGE);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { ::munmap(memory, kBlockBytes); }

  std::byte* data() { return static_cast<std::byte*>(memory); }

  void* memory;
  std::size_t size = 0;
  std::uint64_t offset = 0;
  File* file = nullptr;
};

DirectWriter::DirectWriter(bool may_use_io_uring)
    : ring_(may_use_io_uring ? IoRing::make(2 * kMostBlocks) : nullptr) {}
DirectWriter::~DirectWriter() = default;

int write_all(int file, std::uint64_t offset, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (written == 0) return EIO;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return 0;
}

int DirectWriter::write(
    File& file,
    std::uint64_t offset,
    std::uint64_t num_bytes,
    std::span<const Bytes> pieces) {
  std::size_t from = 0;  // in the first piece
  while (num_bytes > 0) {
    Block* const taken = take_block(file);
    if (taken == nullptr) break;
    Block& block = *taken;
    block.file = &file;
    block.offset = offset;
    block.size = std::min<std::uint64_t>(kBlockBytes, num_bytes);
    for (std::size_t used = 0; used < block.size;) {
      const Bytes rest = pieces.front().subspan(from);
      const std::size_t size = std::min(rest.size(), block.size - used);
      if (size > 0) std::memcpy(block.data() + used, rest.data(), size);
      used += size;
      from += size;
      if (size == rest.size()) {
        pieces = pieces.subspan(1);
        from = 0;
      }
    }
    const std::size_t size = block.size;
    start(block);
    offset += size;
    num_bytes -= size;
  }
  const Lock lock(mutex_);
  return file.error;
}

int DirectWriter::wait(File& file) {
  Lock lock(mutex_);
  while (file.num_in_flight > 0) wait_for_one(lock);
  return file.error;
}

DirectWriter::Block* DirectWriter::take_block(const File& file) {
  Lock lock(mutex_);
  if (file.error != 0) return nullptr;
  if (free_.empty() && blocks_.size() < kMostBlocks) {
    free_.push_back(blocks_.emplace_back(std::make_unique<Block>()).get());
  }
  while (free_.empty()) wait_for_one(lock);
  Block* const block = free_.back();
  free_.pop_back();
  return block;
}

void DirectWriter::start(Block& block) {
  {
    const Lock lock(mutex_);
    ++block.file->num_in_flight;
    const bool is_in_flight = ring_ != nullptr &&
        ring_->write(
            block.file->direct,
            {block.data(), block.size},
            block.offset,
            &block);
    if (is_in_flight) {
      ++num_in_flight_;
      // Another thread may be waiting for a block while none was in flight.
      changed_.notify_all();
      return;
    }
  }
  ssize_t written = 0;
  do {
    written = ::pwrite(
        block.file->direct,
        block.data(),
        block.size,
        static_cast<off_t>(block.offset));
  } while (written < 0 && errno == EINTR);
  const int result = written < 0 ? -errno : static_cast<int>(written);
  const Lock lock(mutex_);
  end(block, result);
}

// Waits until a write completes: one thread waits for the ring, the others wait
// for that thread.
void DirectWriter::wait_for_one(Lock& lock) {
  if (num_in_flight_ == 0 || is_ring_awaited_) {
    changed_.wait(lock);
    return;
  }
  is_ring_awaited_ = true;
  lock.unlock();
  const auto [request, result] = ring_->wait();
  lock.lock();
  is_ring_awaited_ = false;
  --num_in_flight_;
  end(*static_cast<Block*>(request), result);
}

void DirectWriter::end(Block& block, int result) {
  // Data that the file system refuses to take directly, and the rest of a short
  // write, goes through the page cache; that call also reports the error.
  const std::size_t done = result > 0 ? static_cast<std::size_t>(result) : 0;
  int error = 0;
  if (done < block.size) {
    error = write_all(
        block.file->plain,
        block.offset + done,
        Bytes(block.data() + done, block.size - done));
  }
  if (block.file->error == 0) block.file->error = error;
  --block.file->num_in_flight;
  free_.push_back(&block);
  changed_.notify_all();
}

}  // namespace accelerate::detail
