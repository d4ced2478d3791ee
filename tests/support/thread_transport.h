#pragma once

#include <memory>

#include "comm/transport/transport.h"

namespace accelerate::testing {

/// Connects ranks that are threads of this process through shared memory. It
/// reduces few dtypes, on the CPU only, adding in the order of the ranks; its
/// messages have no tags, and its collectives are done when they return. All
/// ranks are given the same one.
std::shared_ptr<detail::Transport> make_thread_transport();

}  // namespace accelerate::testing
