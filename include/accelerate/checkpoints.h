#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <accelerate/checkpoint.h>
#include <accelerate/detail/handles.h>
#include <accelerate/export.h>

namespace accelerate {

namespace detail {
struct Session;
}  // namespace detail

/// The checkpoints of an Accelerator's project, and hooks of its saves and
/// loads. Cheap; made by Accelerator::checkpoints().
class ACCELERATE_API Checkpoints {
 public:
  explicit Checkpoints(std::shared_ptr<detail::Session> session)
      : session_(std::move(session)) {}

  /// The checkpoint that load_state() without a path would load, if there is a
  /// complete one. Needs automatic_checkpoint_naming. All ranks must call it.
  [[nodiscard]] std::optional<std::filesystem::path> latest() const;
  /// Directories and naming, as given, with what the launcher decided.
  [[nodiscard]] const ProjectConfiguration& project_configuration() const;
  /// Sets the number of the next automatic checkpoint; std::nullopt: one more
  /// than the highest present.
  void set_iteration(std::optional<std::int64_t> iteration) const;
  /// Registers a hook that save_state() calls on every rank before anything is
  /// collected, in the order of registration.
  HookHandle register_save_state_pre_hook(
      std::function<void(SaveHookContext&)> hook) const;
  /// Registers a hook that load_state() calls on every rank before anything is
  /// compared.
  HookHandle register_load_state_pre_hook(
      std::function<void(LoadHookContext&)> hook) const;

 private:
  detail::KeptPtr<detail::Session> session_;
};

}  // namespace accelerate
