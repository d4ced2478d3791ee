#include <accelerate/accelerator.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "track/profiler/profile_session.h"
#include "train/session/session.h"

namespace accelerate {

namespace {

// "layers.0.weight" belongs to "layers.0".
std::string owner_of(const std::string& model, const std::string& parameter) {
  const std::size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? model
                                  : model + "." + parameter.substr(0, dot);
}

}  // namespace

Profile Accelerator::profile() const {
  return profile(session_->services.profile_options);
}

Profile Accelerator::profile(const ProfileOptions& options) const {
  detail::ProfileRequest request{
      .options = options,
      .world = session_->world,
      .slot = session_->services.steps,
      // A profile may outlive the accelerator.
      .report =
          [weak = std::weak_ptr(session_)](const std::vector<StepTimes>& rows) {
            if (const auto session = weak.lock())
              session->services.tracking->add_profile(step_times_values(rows));
          }};
  for (const auto& model : session_->prepared.models) {
    if (!model->module) continue;
    const std::string name = model->module->name();
    request.models.emplace(model.get(), name);
    if (!options.with_modules) continue;
    for (const detail::Parameter& row : model->table.rows()) {
      request.owners.emplace(
          row.tensor.unsafeGetTensorImpl(), owner_of(name, row.name));
    }
  }
  auto profile = std::make_unique<detail::ProfileSession>(std::move(request));
  // Direct paths report nothing. They are taken again after the profile ends.
  session_->step.is_direct = false;
  for (const auto& model : session_->prepared.models)
    model->runs_directly = false;
  return Profile(std::move(profile));
}

}  // namespace accelerate
