#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "cli/launch/output/launch_output.h"
#include "launch/processes/supervisor.h"

namespace accelerate::cli {

/// Prefixes every line of a stream that arrives in pieces, and passes on only
/// complete lines, so that lines from several ranks do not mix. A carriage
/// return also ends a line, for progress bars. Lines longer than kMostBytes are
/// passed on in pieces.
class LinePrefixer {
 public:
  static constexpr std::size_t kMostBytes = 1U << 16U;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  /// Returns the lines that `piece` completes, with prefixes.
  std::string feed(std::string_view piece);
  /// Returns an unfinished last line, with a line end.
  std::string finish();

 private:
  std::string prefix_;
  std::string line_;
  bool is_continued_ = false;  // its beginning has been passed on
  bool after_carriage_return_ = false;
};

/// The last lines of a rank's standard error, and whether they report a lost
/// peer.
class LastOutput {
 public:
  void append(std::string_view piece);
  /// Call at the end of the stream.
  void finish();

  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }
  /// True if a line reports a lost peer: the rank is a victim, not the cause.
  [[nodiscard]] bool blames_others() const { return blames_others_; }
  /// True if a line reports that the ranks made different calls, for which no
  /// single rank is to blame.
  [[nodiscard]] bool shows_different_calls() const {
    return shows_different_calls_;
  }
  /// The uncaught exception, as the C++ runtime prints it before it aborts:
  /// "std::runtime_error: no such file". Empty if there is none.
  [[nodiscard]] std::string uncaught_exception() const;

 private:
  std::deque<std::string> lines_;
  std::string unfinished_;
  bool blames_others_ = false;
  bool shows_different_calls_ = false;
};

/// Forwards one of a rank's two output streams to ours and to a file.
class RankStream final : public detail::EventSource {
 public:
  /// The destinations of a stream.
  struct Targets {
    OutputTarget shown;
    OutputTarget log;
  };

  RankStream() = default;
  /// Takes ownership of the pipe. `last_output` may be null; otherwise it
  /// receives all output and must outlive this object.
  RankStream(
      int pipe,
      Targets targets,
      const std::string& prefix,
      LastOutput* last_output = nullptr);
  RankStream(RankStream&& other) noexcept;
  RankStream& operator=(RankStream&& other) noexcept;
  ~RankStream() override;

  [[nodiscard]] int descriptor() const override { return pipe_; }
  /// Forwards what has arrived; closes the pipe at end of stream.
  void read() override;
  [[nodiscard]] int gate() const override;

 private:
  void close_all();

  int pipe_ = -1;
  Targets targets_;
  LinePrefixer prefixer_{""};
  LastOutput* last_output_ = nullptr;
  std::vector<char> block_;
};

}  // namespace accelerate::cli
