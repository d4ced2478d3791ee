#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace accelerate::detail {

/// The parts of a training step that the library sees.
enum class StepPart : std::uint8_t {
  data,           ///< the loader's next batch
  forward,        ///< a prepared model's forward
  backward,       ///< Accelerator::backward()
  optimizer,      ///< Optimizer::step() and zero_grad()
  communication,  ///< waiting for other ranks, inside any other part
  checkpoint,     ///< saving or loading
};

/// Observes what a rank's threads do. Parts nest.
class StepListener {
 public:
  virtual ~StepListener() = default;

  /// `subject` identifies the model of a forward; otherwise null.
  virtual void begin(StepPart part, const void* subject) noexcept = 0;
  virtual void end(StepPart part) noexcept = 0;
  /// `change` more messages are in flight: started and not waited for yet.
  virtual void change_in_flight(int change) noexcept = 0;
  /// In the current part, communication has been in progress for `hidden`
  /// nanoseconds while the rank computed, and for another `exposed` while it
  /// waited.
  virtual void overlapped(
      std::int64_t hidden,
      std::int64_t exposed) noexcept = 0;
  /// An optimizer has made step number `num_steps`.
  virtual void stepped(std::int64_t num_steps) noexcept = 0;
};

/// Where a session's calls find their listeners: a profile while there is one,
/// and a monitor that records what the rank does for the session's lifetime.
/// Without listeners, a call costs two loads and branches.
struct StepSlot {
  std::atomic<StepListener*> listener{nullptr};
  /// Set before any call is made; null if there is none.
  std::shared_ptr<StepListener> monitor = nullptr;

  /// The profile's listener.
  [[nodiscard]] StepListener* get() const {
    return listener.load(std::memory_order_acquire);
  }
  [[nodiscard]] bool is_heard() const {
    return get() != nullptr || monitor != nullptr;
  }
};

/// Reports a part of a step for as long as it lives.
class StepPartScope {
 public:
  StepPartScope(
      const StepSlot* slot,
      StepPart part,
      const void* subject = nullptr)
      : listener_(slot == nullptr ? nullptr : slot->get()),
        monitor_(slot == nullptr ? nullptr : slot->monitor.get()),
        part_(part) {
    if (listener_ != nullptr) listener_->begin(part, subject);
    if (monitor_ != nullptr) monitor_->begin(part, subject);
  }
  StepPartScope(const StepPartScope&) = delete;
  StepPartScope& operator=(const StepPartScope&) = delete;
  ~StepPartScope() {
    if (monitor_ != nullptr) monitor_->end(part_);
    if (listener_ != nullptr) listener_->end(part_);
  }

 private:
  StepListener* listener_;
  StepListener* monitor_;
  StepPart part_;
};

}  // namespace accelerate::detail
