#include "cli/launch/ranks/rank_output.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

constexpr std::size_t kRememberedLines = 12;
constexpr std::size_t kRememberedBytes = 1U << 14U;  // per line

// Returns an error number, or 0.
int write_all(int target, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(target, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return EIO;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

}  // namespace

RankStream::RankStream(
    int pipe,
    int target,
    const std::string& prefix,
    std::string log,
    LastOutput* last_output)
    : pipe_(pipe),
      target_(target),
      log_path_(std::move(log)),
      prefixer_(prefix),
      last_output_(last_output) {
  if (log_path_.empty()) return;
  std::error_code code;
  std::filesystem::create_directories(
      std::filesystem::path(log_path_).parent_path(), code);
  log_ = ::open(
      log_path_.c_str(),
      O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC,
      0666);
  if (log_ < 0) {
    const int problem = errno;
    ::close(pipe_);
    throw ConfigError(detail::format(
        "[launch] cannot write {} of --log_dir: {}",
        log_path_,
        std::strerror(problem)));
  }
}

RankStream::RankStream(RankStream&& other) noexcept
    : pipe_(std::exchange(other.pipe_, -1)),
      target_(other.target_),
      log_(std::exchange(other.log_, -1)),
      log_path_(std::move(other.log_path_)),
      prefixer_(std::move(other.prefixer_)),
      last_output_(other.last_output_),
      block_(std::move(other.block_)) {}

RankStream& RankStream::operator=(RankStream&& other) noexcept {
  std::swap(pipe_, other.pipe_);
  std::swap(target_, other.target_);
  std::swap(log_, other.log_);
  std::swap(log_path_, other.log_path_);
  std::swap(prefixer_, other.prefixer_);
  std::swap(last_output_, other.last_output_);
  std::swap(block_, other.block_);
  return *this;
}

RankStream::~RankStream() { close_all(); }

void RankStream::close_all() {
  if (pipe_ >= 0) ::close(std::exchange(pipe_, -1));
  if (log_ >= 0) ::close(std::exchange(log_, -1));
}

void RankStream::read() {
  block_.resize(1U << 16U);
  const ssize_t count = ::read(pipe_, block_.data(), block_.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count > 0) {
    const std::string_view piece(
        block_.data(), static_cast<std::size_t>(count));
    write_log(piece);
    // A negative target is not shown.
    if (target_ >= 0) write_all(target_, prefixer_.feed(piece));
    if (last_output_ != nullptr) last_output_->append(piece);
    return;
  }
  if (target_ >= 0) write_all(target_, prefixer_.finish());
  if (last_output_ != nullptr) last_output_->finish();
  close_all();
}

void RankStream::write_log(std::string_view text) {
  if (log_ < 0) return;
  const int problem = write_all(log_, text);
  if (problem == 0) return;
  // Training continues without its log.
  ::close(std::exchange(log_, -1));
  const std::string message = detail::format(
      "accelerate-cpp: warning: cannot write {}: {}; further output is not "
      "logged\n",
      log_path_,
      std::strerror(problem));
  write_all(STDERR_FILENO, message);
}

void LastOutput::append(std::string_view piece) {
  for (const char c : piece) {
    if (c != '\n') {
      if (unfinished_.size() < kRememberedBytes) unfinished_ += c;
      continue;
    }
    if (unfinished_.find("[comm]") != std::string::npos ||
        unfinished_.find("DistributedError") != std::string::npos) {
      blames_others_ = true;
    }
    lines_.push_back(std::move(unfinished_));
    unfinished_.clear();
    if (lines_.size() > kRememberedLines) lines_.pop_front();
  }
}

void LastOutput::finish() {
  if (!unfinished_.empty()) append("\n");
}

}  // namespace accelerate::cli
