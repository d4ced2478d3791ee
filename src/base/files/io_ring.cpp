#include "base/files/io_ring.h"

#include <cerrno>

#ifdef ACCELERATE_HAS_IO_URING
#include <liburing.h>
#endif

namespace accelerate::detail {

#ifdef ACCELERATE_HAS_IO_URING

struct IoRing::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (is_open) ::io_uring_queue_exit(&ring);
  }

  io_uring_sqe* next() {
    return is_broken ? nullptr : ::io_uring_get_sqe(&ring);
  }
  bool submit(io_uring_sqe* entry, void* request) {
    ::io_uring_sqe_set_data(entry, request);
    int result = 0;
    do {
      result = ::io_uring_submit(&ring);
    } while (result == -EINTR);
    // A refused request stays in the queue and would be submitted with the next
    // one, when its memory holds other bytes; so nothing more is submitted.
    is_broken = result != 1;
    return !is_broken;
  }

  io_uring ring{};
  bool is_open = false;
  bool is_broken = false;
};

std::unique_ptr<IoRing> IoRing::make(unsigned num_requests) {
  auto state = std::make_unique<State>();
  state->is_open = ::io_uring_queue_init(num_requests, &state->ring, 0) == 0;
  if (!state->is_open) return nullptr;
  return std::unique_ptr<IoRing>(new IoRing(std::move(state)));
}

bool IoRing::read(
    int file,
    std::span<std::byte> memory,
    std::uint64_t offset,
    void* request) {
  io_uring_sqe* const entry = state_->next();
  if (entry == nullptr) return false;
  const auto size = static_cast<unsigned>(memory.size());
  ::io_uring_prep_read(entry, file, memory.data(), size, offset);
  return state_->submit(entry, request);
}

bool IoRing::write(
    int file,
    std::span<const std::byte> memory,
    std::uint64_t offset,
    void* request) {
  io_uring_sqe* const entry = state_->next();
  if (entry == nullptr) return false;
  const auto size = static_cast<unsigned>(memory.size());
  ::io_uring_prep_write(entry, file, memory.data(), size, offset);
  return state_->submit(entry, request);
}

std::pair<void*, int> IoRing::wait() {
  io_uring_cqe* entry = nullptr;
  while (::io_uring_wait_cqe(&state_->ring, &entry) != 0) {
  }
  const std::pair<void*, int> ended{::io_uring_cqe_get_data(entry), entry->res};
  ::io_uring_cqe_seen(&state_->ring, entry);
  return ended;
}

#else

struct IoRing::State {};
std::unique_ptr<IoRing> IoRing::make(unsigned) { return nullptr; }
bool IoRing::read(int, std::span<std::byte>, std::uint64_t, void*) {
  return false;
}
bool IoRing::write(int, std::span<const std::byte>, std::uint64_t, void*) {
  return false;
}
std::pair<void*, int> IoRing::wait() { return {}; }

#endif

IoRing::IoRing(std::unique_ptr<State> state) : state_(std::move(state)) {}
IoRing::~IoRing() = default;

}  // namespace accelerate::detail
