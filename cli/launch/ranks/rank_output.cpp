#include "cli/launch/ranks/rank_output.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace accelerate::cli {

namespace {

constexpr std::size_t kRememberedLines = 12;
constexpr std::size_t kRememberedBytes = 1U << 14U;  // per line

}  // namespace

RankStream::RankStream(
    int pipe,
    Targets targets,
    const std::string& prefix,
    LastOutput* last_output)
    : pipe_(pipe),
      targets_(std::move(targets)),
      prefixer_(prefix),
      last_output_(last_output) {}

RankStream::RankStream(RankStream&& other) noexcept
    : pipe_(std::exchange(other.pipe_, -1)),
      targets_(std::exchange(other.targets_, {})),
      prefixer_(std::move(other.prefixer_)),
      last_output_(other.last_output_),
      block_(std::move(other.block_)) {}

RankStream& RankStream::operator=(RankStream&& other) noexcept {
  std::swap(pipe_, other.pipe_);
  std::swap(targets_, other.targets_);
  std::swap(prefixer_, other.prefixer_);
  std::swap(last_output_, other.last_output_);
  std::swap(block_, other.block_);
  return *this;
}

RankStream::~RankStream() { close_all(); }

void RankStream::close_all() {
  if (pipe_ >= 0) ::close(std::exchange(pipe_, -1));
  targets_.log.close();
}

int RankStream::gate() const {
  const int shown = targets_.shown.gate();
  return shown >= 0 ? shown : targets_.log.gate();
}

void RankStream::read() {
  block_.resize(1U << 16U);
  const ssize_t count = ::read(pipe_, block_.data(), block_.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count > 0) {
    const std::string_view piece(
        block_.data(), static_cast<std::size_t>(count));
    targets_.log.write(std::string(piece));
    if (targets_.shown.is_open()) targets_.shown.write(prefixer_.feed(piece));
    if (last_output_ != nullptr) last_output_->append(piece);
    return;
  }
  targets_.shown.write(prefixer_.finish());
  if (last_output_ != nullptr) last_output_->finish();
  close_all();
}

void LastOutput::append(std::string_view piece) {
  for (const char c : piece) {
    if (c != '\n') {
      if (unfinished_.size() < kRememberedBytes) unfinished_ += c;
      continue;
    }
    if (unfinished_.find("made different calls") != std::string::npos ||
        unfinished_.find("has moved on without it") != std::string::npos) {
      shows_different_calls_ = blames_others_ = true;
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

std::string LastOutput::uncaught_exception() const {
  // libstdc++ prints the type and, on the next line, what(); libc++ both on
  // one line.
  constexpr std::string_view kType =
      "terminate called after throwing an "
      "instance of '";
  constexpr std::string_view kWhat = "  what():  ";
  constexpr std::string_view kBoth =
      "terminating due to uncaught exception of type ";
  for (std::size_t i = lines_.size(); i-- > 0;) {
    const std::string_view line = lines_[i];
    if (const auto at = line.find(kBoth); at != std::string_view::npos)
      return std::string(line.substr(at + kBoth.size()));
    const auto at = line.find(kType);
    if (at == std::string_view::npos) continue;
    std::string text(line.substr(at + kType.size()));
    if (text.ends_with("'")) text.pop_back();
    if (i + 1 < lines_.size() && lines_[i + 1].starts_with(kWhat))
      text += ": " + lines_[i + 1].substr(kWhat.size());
    return text;
  }
  return {};
}

void LastOutput::finish() {
  if (!unfinished_.empty()) append("\n");
}

std::string LinePrefixer::feed(std::string_view piece) {
  std::string out;
  for (const char c : piece) {
    // "\r\n" is one line end.
    const bool is_second_half =
        c == '\n' && after_carriage_return_ && line_.empty();
    after_carriage_return_ = c == '\r';
    if (is_second_half) {
      out += '\n';
      continue;
    }
    line_ += c;
    const bool ends_line = c == '\n' || c == '\r';
    if (!ends_line && line_.size() < kMostBytes) continue;
    // A carriage return on an empty line only moves the cursor.
    if (!is_continued_ && line_ != "\r") out += prefix_;
    out += line_;
    line_.clear();
    is_continued_ = !ends_line;
  }
  return out;
}

std::string LinePrefixer::finish() {
  if (line_.empty() && !is_continued_) return {};
  std::string out = (is_continued_ ? std::string() : prefix_) + line_ + '\n';
  line_.clear();
  is_continued_ = false;
  return out;
}

}  // namespace accelerate::cli
