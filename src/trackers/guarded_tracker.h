#pragma once

#include <memory>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// The tracker, which then only gets calls between a start() that succeeds and
/// the first finish(): others throw ConfigError, or do nothing where there is
/// nothing to do (flush() and finish()). A start() that threw may be repeated.
std::unique_ptr<GeneralTracker> guard_tracker(
    std::unique_ptr<GeneralTracker> tracker);

}  // namespace accelerate::detail
