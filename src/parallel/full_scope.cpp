#include "parallel/full_scope.h"

#include <utility>

#include <accelerate/error.h>

namespace accelerate::detail {

FullScope::FullScope(std::function<void()> open, std::function<void()> close)
    : calls_(std::make_shared<Calls>(
          Calls{.open = std::move(open), .close = std::move(close)})) {}

std::shared_ptr<void> FullScope::enter() {
  if (auto handle = handle_.lock()) return handle;
  calls_->open();
  std::shared_ptr<void> handle(
      calls_.get(), [calls = std::weak_ptr(calls_)](Calls*) {
        if (const auto living = calls.lock()) living->close();
      });
  handle_ = handle;
  return handle;
}

void FullScope::require_closed() const {
  if (handle_.expired()) return;
  throw ConfigError(
      "[parallel] backward() must not be called while full_parameters() lives, "
      "whose parameters do not receive gradients; end its scope before");
}

}  // namespace accelerate::detail
