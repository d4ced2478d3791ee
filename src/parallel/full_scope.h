#pragma once

#include <functional>
#include <memory>

namespace accelerate::detail {

/// Keeps the parameters of a strategy as full_parameters() shows them while a
/// handle from enter() is alive.
class FullScope {
 public:
  /// `open` makes parameters full, `close` makes them slices again; neither is
  /// called once this object is destroyed.
  FullScope(std::function<void()> open, std::function<void()> close);

  /// The first handle opens; destroying the last one closes.
  [[nodiscard]] std::shared_ptr<void> enter();
  /// Whether a handle is alive.
  [[nodiscard]] bool is_open() const { return !handle_.expired(); }
  /// Throws ConfigError, naming backward(), while a handle is alive.
  void require_closed() const;

 private:
  struct Calls {
    std::function<void()> open;
    std::function<void()> close;
  };

  std::shared_ptr<Calls> calls_;
  std::weak_ptr<void> handle_;
};

}  // namespace accelerate::detail
