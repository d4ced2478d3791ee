#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include <accelerate/detail/step_parts.h>

#include "launch/board/board_writer.h"

namespace accelerate::detail {

/// Notes phases and steps on a rank's page, and in every eighth step the
/// durations of the phases, excluding waits for other ranks.
class BoardMonitor final : public StepListener {
 public:
  explicit BoardMonitor(std::shared_ptr<BoardWriter> writer)
      : writer_(std::move(writer)) {}

  void begin(StepPart part, const void* subject) noexcept override;
  void end(StepPart part) noexcept override;
  void change_in_flight(int) noexcept override {}
  void overlapped(std::int64_t hidden, std::int64_t exposed) noexcept override;
  void stepped(std::int64_t num_steps) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostOpen = 16;

  struct OpenPart {
    RankPhase before = RankPhase::between;
    bool is_timed = false;
    Clock::time_point begin{};
    std::int64_t waited_ns = 0;
  };

  std::shared_ptr<BoardWriter> writer_;
  std::mutex mutex_;
  // Guarded by the mutex.
  std::array<OpenPart, kMostOpen> open_;
  std::size_t num_open_ = 0;
  int num_waiting_ = 0;
  Clock::time_point waiting_since_{};
  std::int64_t waited_ns_ = 0;
};

}  // namespace accelerate::detail
