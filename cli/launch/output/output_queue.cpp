#include "cli/launch/output/output_queue.h"

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace accelerate::cli {

namespace {

// Returns an error number, or 0.
int write_all(int target, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(target, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      // Another process has made a shared pipe non-blocking.
      pollfd wait{target, POLLOUT, 0};
      ::poll(&wait, 1, -1);
      continue;
    }
    if (count < 0) return errno;
    if (count == 0) return EIO;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

}  // namespace

OutputFile::OutputFile(std::string path, std::function<void(int)> on_failure)
    : is_own_(true),
      path_(std::move(path)),
      on_failure_(std::move(on_failure)) {}

OutputFile::~OutputFile() {
  if (is_own_ && descriptor_ >= 0) ::close(descriptor_);
}

std::optional<int> OutputFile::wait_until_open(
    std::chrono::milliseconds time) const {
  if (open_result_.wait_for(time) != std::future_status::ready)
    return std::nullopt;
  return open_result_.get();
}

void OutputFile::open() {
  const std::string path = std::exchange(path_, {});
  std::error_code ignored;
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path(), ignored);
  // Without O_NONBLOCK, opening a pipe that nobody reads does not return.
  descriptor_ = ::open(
      path.c_str(),
      O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NONBLOCK,
      0666);
  const int problem = descriptor_ < 0 ? errno : 0;
  if (problem == 0) ::fcntl(descriptor_, F_SETFL, O_APPEND);
  opened_.set_value(problem);
  if (problem != 0) on_failure_(problem);
}

void OutputFile::write(std::string_view text) {
  if (!path_.empty()) open();
  if (descriptor_ < 0) return;
  const int problem = write_all(descriptor_, text);
  if (problem == 0 || !is_own_) return;
  ::close(std::exchange(descriptor_, -1));
  on_failure_(problem);
}

OutputQueue::State::State() : room(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) {}

OutputQueue::State::~State() {
  if (room >= 0) ::close(room);
}

void OutputQueue::State::run() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return !items.empty() || is_closed; });
    if (items.empty()) return;
    Item item = std::move(items.front());
    items.pop_front();
    is_writing = true;
    lock.unlock();
    item.file->write(item.text);
    // Closing a file may take time as well.
    item.file.reset();
    lock.lock();
    is_writing = false;
    num_unwritten -= item.text.size();
    if (is_full && num_unwritten <= kEnough / 2) {
      is_full = false;
      const std::uint64_t one = 1;
      (void)!::write(room, &one, sizeof one);
    }
  }
}

OutputQueue::OutputQueue()
    : state_(std::make_shared<State>()),
      thread_([state = state_] { state->run(); }) {}

OutputQueue::~OutputQueue() {
  const bool waits = is_idle();
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_closed = true;
  }
  state_->changed.notify_one();
  if (waits) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void OutputQueue::add(std::shared_ptr<OutputFile> file, std::string text) {
  const std::lock_guard lock(state_->mutex);
  if (state_->num_unwritten + text.size() > kMost) {
    state_->num_dropped += text.size();
    text.clear();
  }
  state_->num_unwritten += text.size();
  state_->items.push_back({std::move(file), std::move(text)});
  if (!state_->is_full && state_->num_unwritten >= kEnough) {
    state_->is_full = true;
    std::uint64_t ignored = 0;
    (void)!::read(state_->room, &ignored, sizeof ignored);
  }
  state_->changed.notify_one();
}

int OutputQueue::gate() const {
  const std::lock_guard lock(state_->mutex);
  return state_->is_full ? state_->room : -1;
}

bool OutputQueue::is_idle() const {
  const std::lock_guard lock(state_->mutex);
  return state_->items.empty() && !state_->is_writing;
}

std::size_t OutputQueue::num_unwritten() const {
  const std::lock_guard lock(state_->mutex);
  return state_->num_unwritten;
}

std::size_t OutputQueue::num_dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->num_dropped;
}

}  // namespace accelerate::cli
