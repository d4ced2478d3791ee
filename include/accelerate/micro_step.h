#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include <accelerate/export.h>

namespace accelerate {

namespace detail {
struct PreparedModel;
struct Session;
}  // namespace detail

/// Options of Accelerator::prepare_data_loader().
struct PrepareDataLoaderOptions {
  /// Move batches to the device; overrides the loader's own option. Unset: as
  /// that option says, else AcceleratorOptions::device_placement.
  std::optional<bool> device_placement = std::nullopt;
};

/// A scope of one micro-step. In all but the last of a window, gradients of the
/// named models are not averaged over the ranks, and optimizers and schedulers
/// do not step.
class ACCELERATE_API MicroStep {
 public:
  /// A no-op scope.
  MicroStep() = default;
  /// The models must be the session's.
  MicroStep(
      std::shared_ptr<detail::Session> session,
      std::initializer_list<detail::PreparedModel*> models,
      bool sync_gradients);
  ~MicroStep() {
    if (session_) restore();
  }
  MicroStep(const MicroStep&) = delete;
  MicroStep& operator=(const MicroStep&) = delete;

 private:
  void restore();

  std::shared_ptr<detail::Session> session_;
  std::vector<detail::PreparedModel*> models_;
  std::vector<bool> before_;
};

}  // namespace accelerate
