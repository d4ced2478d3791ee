#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <accelerate/export.h>
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

/// Throws ConfigError: a loop goes on although its loader is gone.
[[noreturn]] ACCELERATE_API void throw_loader_gone();
/// Throws ConfigError: an iterator has no batch, since its pass has ended.
[[noreturn]] ACCELERATE_API void throw_no_batch();

/// Where a loader is, for what refers to it: null once the loader is gone.
template <class Loader>
class LoaderPlace {
 public:
  explicit LoaderPlace(std::shared_ptr<Loader*> place)
      : place_(std::move(place)) {}

  [[nodiscard]] Loader* get() const { return place_ ? *place_ : nullptr; }
  [[nodiscard]] Loader& require() const {
    if (get() == nullptr) throw_loader_gone();
    return *get();
  }
  /// Refers to no loader from now on.
  void release() { place_.reset(); }
  [[nodiscard]] bool is_released() const { return place_ == nullptr; }

 private:
  std::shared_ptr<Loader*> place_;
};

/// Base class of loaders: keeps the slot, iterators and views pointing at the
/// loader when it moves.
template <class Loader>
class LoaderLink {
 public:
  LoaderLink() = default;
  LoaderLink(LoaderLink&& other) noexcept
      : slot_(std::move(other.slot_)), place_(std::move(other.place_)) {
    point_here();
  }
  LoaderLink& operator=(LoaderLink&& other) noexcept {
    if (this == &other) return *this;
    clear();
    slot_ = std::move(other.slot_);
    place_ = std::move(other.place_);
    point_here();
    return *this;
  }
  ~LoaderLink() { clear(); }

  /// The place where iterators and views find the loader.
  [[nodiscard]] LoaderPlace<Loader> place() {
    if (!place_)
      place_ = std::make_shared<Loader*>(static_cast<Loader*>(this));
    return LoaderPlace<Loader>(place_);
  }

 protected:
  void link(std::shared_ptr<LoaderSlot> slot) {
    if (slot_) *slot_ = {};
    slot_ = std::move(slot);
    point_here();
  }

 private:
  void clear() {
    if (slot_) *slot_ = {};
    slot_.reset();
    if (place_) *place_ = nullptr;
    place_.reset();
  }
  void point_here() {
    if (place_) *place_ = static_cast<Loader*>(this);
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
  std::shared_ptr<Loader*> place_;
};

}  // namespace accelerate::detail
