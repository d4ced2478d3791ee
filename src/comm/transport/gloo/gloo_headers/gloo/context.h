#pragma once

// The wheels ship ProcessGroupGloo.hpp but none of Gloo's own headers. These
// declare the few names it mentions; we never define, call or lay out any of
// them, so no layout can differ. Private to gloo_transport.cpp.

#include <chrono>
#include <memory>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class UnboundBuffer;
class Device;
}  // namespace transport

}  // namespace gloo
