#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "cli/launch/ranks/line_prefixer.h"
#include "launch/supervisor.h"

namespace accelerate::cli {

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

 private:
  std::deque<std::string> lines_;
  std::string unfinished_;
  bool blames_others_ = false;
};

/// Forwards one of a rank's two output streams to ours and to a file.
class RankStream final : public detail::EventSource {
 public:
  RankStream() = default;
  /// Takes ownership of the pipe. `target` is the descriptor that shows the
  /// output, or -1; `log` is a path, or empty. `last_output` may be null;
  /// otherwise it receives all output and must outlive this object.
  RankStream(
      int pipe,
      int target,
      const std::string& prefix,
      std::string log,
      LastOutput* last_output = nullptr);
  RankStream(RankStream&& other) noexcept;
  RankStream& operator=(RankStream&& other) noexcept;
  ~RankStream() override;

  [[nodiscard]] int descriptor() const override { return pipe_; }
  /// Forwards what has arrived; closes the pipe at end of stream.
  void read() override;

 private:
  void write_log(std::string_view text);
  void close_all();

  int pipe_ = -1;
  int target_ = -1;
  int log_ = -1;
  std::string log_path_;
  LinePrefixer prefixer_{""};
  LastOutput* last_output_ = nullptr;
  std::vector<char> block_;
};

}  // namespace accelerate::cli
