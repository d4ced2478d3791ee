#pragma once

#include <functional>
#include <memory>

namespace accelerate::detail {

/// Full parameters while a handle from enter() lives, of a strategy that keeps
/// slices in their place.
class FullScope {
 public:
  /// `open` makes parameters full, `close` makes them slices again; neither is
  /// called once this object has ended.
  FullScope(std::function<void()> open, std::function<void()> close);

  /// The first handle opens, and the end of the last one closes.
  [[nodiscard]] std::shared_ptr<void> enter();
  /// Throws ConfigError, naming backward(), while a handle lives.
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
