#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "cli/launch/line_prefixer.h"
#include "launch/supervisor.h"

namespace accelerate::cli {

/// The last lines of a rank's standard error, and what they tell.
class LastWords {
 public:
  void hear(std::string_view piece);
  /// The stream is at its end.
  void finish();

  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }
  /// Some line speaks of a lost peer: then the rank is a victim, not the cause.
  [[nodiscard]] bool blames_others() const { return blames_others_; }

 private:
  std::deque<std::string> lines_;
  std::string unfinished_;
  bool blames_others_ = false;
};

/// One of the two output streams of a rank, on its way to ours and to a file.
class RankStream final : public detail::EventSource {
 public:
  RankStream() = default;
  /// Takes the pipe over. `target` is where it is shown, or -1; `log` a path,
  /// or nothing. `last_words`, if any, hear everything and must outlive this.
  RankStream(
      int pipe,
      int target,
      const std::string& prefix,
      std::string log,
      LastWords* last_words = nullptr);
  RankStream(RankStream&& other) noexcept;
  RankStream& operator=(RankStream&& other) noexcept;
  ~RankStream() override;

  [[nodiscard]] int descriptor() const override { return pipe_; }
  /// Moves what has arrived; closes the pipe at its end.
  void read() override;

 private:
  void write_log(std::string_view text);
  void close_all();

  int pipe_ = -1;
  int target_ = -1;
  int log_ = -1;
  std::string log_path_;
  LinePrefixer prefixer_{""};
  LastWords* last_words_ = nullptr;
  std::vector<char> block_;
};

}  // namespace accelerate::cli
