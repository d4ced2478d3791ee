#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include <accelerate/detail/step_parts.h>
#include <accelerate/profiler.h>

namespace accelerate::detail {

class OperatorRecorder;

/// Adds up where the time of steps goes. A part's time excludes the parts inside
/// it. Parts are reported by the thread that made the recorder; waiting for
/// other ranks also by those that run its backward.
class StepRecorder final : public StepListener {
 public:
  /// `models` has the names of the subjects of forwards.
  explicit StepRecorder(
      std::unordered_map<const void*, std::string> models = {})
      : models_(std::move(models)) {}

  /// Begins a step, forgetting reports since the last one. Parts become events
  /// of `operators`, which may be null.
  void start(std::shared_ptr<OperatorRecorder> operators);
  /// Ends the step under way and begins the next.
  void end_step();
  /// Ends recording. The time since the last step counts as a step only if
  /// there was none.
  void stop();
  [[nodiscard]] StepTimes times() const;

  void begin(StepPart part, const void* subject) noexcept override;
  void end(StepPart part) noexcept override;
  void change_in_flight(int change) noexcept override;
  void overlapped(std::int64_t hidden, std::int64_t exposed) noexcept override;
  void stepped(std::int64_t) noexcept override {}

 private:
  static constexpr std::size_t kNumParts = 6;
  static constexpr std::size_t kMostOpen = 32;
  static constexpr std::size_t kMostGaps = 64;
  static constexpr std::array<bool, kMostGaps> all_gaps() {
    std::array<bool, kMostGaps> all{};
    all.fill(true);
    return all;
  }

  struct OpenPart {
    StepPart part = StepPart::data;
    std::int64_t begin_ns = 0;
    const void* subject = nullptr;
  };

  // Counts the time since the last change for the part that it went to.
  void settle(std::int64_t now);
  void add_event(const OpenPart& part, std::int64_t now) noexcept;
  [[nodiscard]] bool is_outside() const {
    return num_open_ == 0 && num_waiting_ == 0;
  }
  // The time between two parts begins.
  void begin_gap();
  void end_gap();
  void count_gap(std::int64_t spent);

  const std::unordered_map<const void*, std::string> models_;
  const std::thread::id thread_ = std::this_thread::get_id();
  mutable std::mutex mutex_;
  std::shared_ptr<OperatorRecorder> operators_;
  bool is_running_ = false;
  StepTimes done_ = {};
  StepTimes step_ = {};
  std::array<std::int64_t, kNumParts> parts_ns_{};
  // The parts under way on the recorder's thread, except communication.
  std::array<OpenPart, kMostOpen> open_{};
  std::size_t num_open_ = 0;
  int num_waiting_ = 0;
  int num_in_flight_ = 0;
  std::int64_t waiting_since_ns_ = 0;
  std::int64_t last_ns_ = 0;
  // Number of the current gap in its step, and its time so far.
  std::size_t gap_ = 0;
  std::int64_t gap_ns_ = 0;
  // Whether gaps were long in the previous step; initially, all are assumed to
  // be.
  std::array<bool, kMostGaps> was_long_ = all_gaps();
  // Time that the thread had used of a processor at last_ns_, in gaps that are
  // assumed to be long.
  std::optional<std::int64_t> last_cpu_ns_ = std::nullopt;
};

}  // namespace accelerate::detail
