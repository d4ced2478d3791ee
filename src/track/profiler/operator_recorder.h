#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/record_function.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <accelerate/profiler.h>

#include "track/profiler/recorded_cycle.h"

namespace accelerate::detail {

/// The module that owns a parameter, by its name in the model.
using ParameterOwners = std::unordered_map<const void*, std::string>;

/// Records the operators and user ranges of the thread that starts it, and of
/// the backward passes that it starts, with LibTorch's callbacks; only memory
/// and the events of add_here() unless the options have the activity `cpu`. Held by
/// shared_ptr: LibTorch hands it from thread to thread.
class OperatorRecorder final
    : public torch::profiler::impl::ProfilerStateBase,
      public std::enable_shared_from_this<OperatorRecorder> {
 public:
  OperatorRecorder(
      ProfileOptions options,
      std::shared_ptr<const ParameterOwners> owners);

  /// Throws ConfigError if a profile records the thread already.
  void start();
  /// Drops what was recorded so far.
  void clear();
  /// Called on the thread that started it.
  void stop() noexcept;
  /// Moves the records out.
  [[nodiscard]] RecordedCycle take();

  [[nodiscard]] const ProfileOptions& options() const { return options_; }
  /// Adds an event of this thread.
  void add_here(RecordedEvent event);

  /// Null if none records this thread.
  static OperatorRecorder* of_this_thread();

  void reportMemoryUsage(
      void* address,
      std::int64_t bytes,
      std::size_t total_allocated,
      std::size_t total_reserved,
      c10::Device device) override;
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }

 private:
  struct OpenEvent;

  static std::unique_ptr<at::ObserverContext> on_begin(
      const at::RecordFunction& function);
  static void on_end(
      const at::RecordFunction& function,
      at::ObserverContext* context);
  [[nodiscard]] std::string owner_among(
      c10::ArrayRef<const c10::IValue> inputs) const;

  const ProfileOptions options_;
  const std::shared_ptr<const ParameterOwners> owners_;
  std::optional<at::CallbackHandle> callback_ = std::nullopt;
  bool is_running_ = false;
  std::mutex mutex_;
  std::int64_t begin_ns_ = 0;
  std::int64_t end_ns_ = 0;
  std::vector<RecordedEvent> events_;
  std::vector<RecordedMemory> memory_;
};

/// Throws ConfigError for a schedule that records nothing, and for activities
/// that this process cannot record.
void check_profile(const ProfileOptions& options);

/// True if a profile with these options records the activity. For `cuda` with
/// unset activities, does not say whether there is a device.
bool records(const ProfileOptions& options, ProfilerActivity activity);

}  // namespace accelerate::detail
