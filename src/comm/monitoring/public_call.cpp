#include "comm/monitoring/public_call.h"

namespace accelerate::detail {

namespace {

// Each thread makes its own calls.
thread_local const char* outermost = nullptr;

}  // namespace

PublicCall::PublicCall(const char* name) noexcept
    : is_outermost_(outermost == nullptr) {
  if (is_outermost_) outermost = name;
}

PublicCall::~PublicCall() {
  if (is_outermost_) outermost = nullptr;
}

const char* PublicCall::current() noexcept { return outermost; }

}  // namespace accelerate::detail
