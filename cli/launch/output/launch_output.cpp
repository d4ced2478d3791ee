#include "cli/launch/output/launch_output.h"

#include <atomic>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookInterval{10};
constexpr std::chrono::seconds kTimeWithoutReading{60};
constexpr std::chrono::seconds kTimeAfterSignal{2};
constexpr std::chrono::seconds kTimeForLastWords{1};

bool are_same_file(int first, int second) {
  struct stat a {
  }, b{};
  return ::fstat(first, &a) == 0 && ::fstat(second, &b) == 0 &&
      a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

[[noreturn]] void refuse_log(const std::string& path, int problem) {
  throw ConfigError(detail::format(
      "[launch] cannot write {} of --log_dir: {}",
      path,
      std::strerror(problem)));
}

// Ensures that later output does not wait for the reader.
void replace_by_nothing(int descriptor) {
  const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nothing < 0) return;
  ::dup2(nothing, descriptor);
  ::close(nothing);
}

}  // namespace

void OutputTarget::write(std::string text) const {
  if (is_open() && !text.empty()) queue_->add(file_, std::move(text));
}

int OutputTarget::gate() const { return is_open() ? queue_->gate() : -1; }

void OutputTarget::close() {
  if (is_open()) queue_->add(std::exchange(file_, nullptr), {});
}

LaunchOutput::LaunchOutput(
    const Signals& signals,
    std::chrono::milliseconds patience)
    : signals_(signals),
      patience_(patience),
      out_queue_(std::make_shared<OutputQueue>()),
      err_queue_(
          are_same_file(STDOUT_FILENO, STDERR_FILENO)
              ? out_queue_
              : std::make_shared<OutputQueue>()),
      out_(out_queue_, std::make_shared<OutputFile>(STDOUT_FILENO)),
      err_(err_queue_, std::make_shared<OutputFile>(STDERR_FILENO)) {}

LaunchOutput::~LaunchOutput() {
  wait_until_written();
  const std::string losses = describe_losses();
  if (!losses.empty() && err_queue_->is_idle()) {
    say(losses);
    wait_for_last_words();
  }
  if (!out_queue_->is_idle()) replace_by_nothing(STDOUT_FILENO);
  if (!err_queue_->is_idle()) replace_by_nothing(STDERR_FILENO);
}

const OutputTarget& LaunchOutput::of(int descriptor) const {
  return descriptor == STDOUT_FILENO ? out_ : err_;
}

OutputTarget LaunchOutput::open_log(const std::string& path, bool must_open) {
  if (log_queue_ == nullptr) log_queue_ = std::make_shared<OutputQueue>();
  // The side that clears it says that the file cannot be opened.
  const auto is_awaited = std::make_shared<std::atomic<bool>>(must_open);
  auto file = std::make_shared<OutputFile>(
      path, [path, err = err_, is_awaited](int problem) {
        if (is_awaited->exchange(false)) return;
        err.write(detail::format(
            "accelerate-cpp: warning: cannot write {}: {}; further "
            "output is not logged\n",
            path,
            std::strerror(problem)));
      });
  log_queue_->add(file, {});
  if (must_open) {
    require_open(*file, path);
    const bool has_failed_since = !is_awaited->exchange(false);
    if (has_failed_since) refuse_log(path, *file->wait_until_open({}));
  }
  return {log_queue_, std::move(file)};
}

void LaunchOutput::require_open(
    const OutputFile& file,
    const std::string& path) {
  const auto deadline = Clock::now() + patience_;
  while (!has_slow_disk_) {
    const std::optional<int> problem = file.wait_until_open(kLookInterval);
    if (problem == 0) return;
    if (problem) refuse_log(path, *problem);
    signals_.heed();
    has_slow_disk_ = Clock::now() >= deadline;
    if (!has_slow_disk_) continue;
    say(detail::format(
        "accelerate-cpp: warning: {} of --log_dir does not open: its disk does "
        "not answer; the ranks start, and what they print "
        "is logged once it does\n",
        path));
  }
}

bool LaunchOutput::is_idle() const {
  return (log_queue_ == nullptr || log_queue_->is_idle()) &&
      out_queue_->is_idle() && err_queue_->is_idle();
}

std::size_t LaunchOutput::num_unwritten() const {
  return (log_queue_ == nullptr ? 0 : log_queue_->num_unwritten()) +
      out_queue_->num_unwritten() +
      (err_queue_ == out_queue_ ? 0 : err_queue_->num_unwritten());
}

void LaunchOutput::wait_until_written() const {
  std::optional<Clock::time_point> told_at;
  auto last_progress = Clock::now();
  std::size_t left = num_unwritten();
  while (!is_idle()) {
    pollfd wait{signals_.descriptor(), POLLIN, 0};
    ::poll(&wait, 1, static_cast<int>(kLookInterval.count()));
    while (signals_.next()) {
    }
    const auto now = Clock::now();
    if (std::exchange(left, num_unwritten()) != left) last_progress = now;
    if (signals_.is_told_to_end()) {
      if (!told_at) told_at = now;
      if (now - *told_at > kTimeAfterSignal) return;
    }
    const bool awaits_person =
        (!out_queue_->is_idle() && ::isatty(STDOUT_FILENO) == 1) ||
        (!err_queue_->is_idle() && ::isatty(STDERR_FILENO) == 1);
    if (!awaits_person && now - last_progress > kTimeWithoutReading) return;
  }
}

std::string LaunchOutput::describe_losses() const {
  std::string lines;
  const auto add = [&](const OutputQueue& queue, const char* name) {
    const std::size_t count = queue.num_unwritten() + queue.num_dropped();
    if (count == 0) return;
    lines += detail::format(
        "accelerate-cpp: warning: {} bytes of output are lost, since {} did "
        "not take them in time\n",
        count,
        name);
  };
  add(*out_queue_,
      out_queue_ == err_queue_ ? "the reader of standard output and error"
                               : "the reader of standard output");
  if (err_queue_ != out_queue_)
    add(*err_queue_, "the reader of standard error");
  if (log_queue_ != nullptr) add(*log_queue_, "the disk of --log_dir");
  return lines;
}

void LaunchOutput::wait_for_last_words() const {
  const auto deadline = Clock::now() + kTimeForLastWords;
  while (!err_queue_->is_idle() && Clock::now() < deadline)
    ::poll(nullptr, 0, static_cast<int>(kLookInterval.count()));
}

}  // namespace accelerate::cli
