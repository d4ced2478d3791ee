#pragma once

#include <functional>
#include <string>

#include <accelerate/state_dict.h>

namespace accelerate::detail {

/// Callbacks to a loader that the session does not own. Empty once the loader
/// is gone.
struct LoaderSlot {
  std::function<StateDict()> state_dict;
  std::function<void(const StateDict&)> load_state_dict;
  /// Returns why the loader cannot resume from a state; "" if it can.
  std::function<std::string(const StateDict&)> load_complaint = nullptr;
};

}  // namespace accelerate::detail
