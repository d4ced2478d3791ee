#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <accelerate/state_dict.h>

namespace accelerate::detail {

/// Callbacks to a loader that the session does not own. Empty once the loader
/// is gone.
struct LoaderSlot {
  std::function<StateDict()> state_dict;
  std::function<void(const StateDict&)> load_state_dict;
  /// Returns why the loader cannot resume from a state; "" if it can. Null:
  /// load_state_dict checks.
  std::function<std::string(const StateDict&)> load_complaint = nullptr;
};

/// Base class of loaders: keeps the slot pointing at the loader when it moves.
template <class Loader>
class LoaderLink {
 public:
  LoaderLink() = default;
  LoaderLink(LoaderLink&& other) noexcept : slot_(std::move(other.slot_)) {
    point_here();
  }
  LoaderLink& operator=(LoaderLink&& other) noexcept {
    clear();
    slot_ = std::move(other.slot_);
    point_here();
    return *this;
  }
  ~LoaderLink() { clear(); }

 protected:
  void link(std::shared_ptr<LoaderSlot> slot) {
    clear();
    slot_ = std::move(slot);
    point_here();
  }

 private:
  void clear() {
    if (slot_) *slot_ = {};
    slot_.reset();
  }
  void point_here() {
    if (!slot_) return;
    auto* const loader = static_cast<Loader*>(this);
    slot_->state_dict = [loader] { return loader->state_dict(); };
    slot_->load_state_dict = [loader](const StateDict& state) {
      loader->load_state_dict(state);
    };
    if constexpr (requires(const StateDict& state) {
                    loader->load_complaint(state);
                  }) {
      slot_->load_complaint = [loader](const StateDict& state) {
        return loader->load_complaint(state);
      };
    }
  }

  std::shared_ptr<LoaderSlot> slot_;
};

}  // namespace accelerate::detail
