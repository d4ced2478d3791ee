#include "comm/transport/shared_memory/memory/peers.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

int open_process(std::int64_t process) {
#ifdef SYS_pidfd_open
  return static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
#else
  return -1;
#endif
}

bool has_ended(int descriptor, std::int64_t process) {
  if (descriptor >= 0) {
    pollfd entry{.fd = descriptor, .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) > 0;
  }
  return ::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
}

}  // namespace

Peers::Peers(std::vector<int> world_ranks)
    : world_ranks_(std::move(world_ranks)),
      descriptors_(world_ranks_.size(), -1) {}

Peers::~Peers() {
  for (const int descriptor : descriptors_) {
    if (descriptor >= 0) ::close(descriptor);
  }
}

void Peers::watch(const Fabric& fabric) {
  for (int rank = 0; rank < fabric.size(); ++rank) {
    const std::int64_t process = fabric.page(rank).process.load();
    if (process != ::getpid())
      descriptors_[static_cast<std::size_t>(rank)] = open_process(process);
  }
}

std::vector<int> Peers::find_gone(const Fabric& fabric) const {
  std::vector<int> gone;
  for (int peer = 0; peer < fabric.size(); ++peer) {
    if (peer == fabric.rank()) continue;
    const RankPage& page = fabric.page(peer);
    const int descriptor = descriptors_[static_cast<std::size_t>(peer)];
    const std::int64_t process = page.process.load();
    if (page.state.load() == PageState::closed ||
        (process != ::getpid() && has_ended(descriptor, process)))
      gone.push_back(peer);
  }
  return gone;
}

bool Peers::have_left(const Fabric& fabric) {
  for (int peer = 0; peer < fabric.size(); ++peer) {
    if (peer != fabric.rank() &&
        fabric.page(peer).state.load() == PageState::closed)
      return true;
  }
  return false;
}

std::string Peers::name_of(int rank) const {
  return std::to_string(world_ranks_[static_cast<std::size_t>(rank)]);
}

std::string Peers::describe_gone(const Fabric& fabric, int rank) const {
  const RankPage& page = fabric.page(rank);
  if (page.state.load() != PageState::closed) {
    return format(
        "{}the process of rank {} has ended", kSharedMemoryMark, name_of(rank));
  }
  const std::string last_output(page.last_output.data());
  if (!last_output.empty()) return last_output;
  return format(
      "{}rank {} has closed its connection", kSharedMemoryMark, name_of(rank));
}

}  // namespace accelerate::detail
