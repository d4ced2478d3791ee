#include <utility>

#include <torch/nn/module.h>

#include <accelerate/accelerator.h>

#include "checkpoint/run/checkpoints.h"
#include "train/checkpoints/checkpoint_components.h"
#include "train/session/session.h"
#include "train/step/step_watch.h"

namespace accelerate {

namespace {

using detail::Session;

std::vector<std::shared_ptr<torch::nn::Module>> modules_of(
    const Session& session) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const detail::PreparedModel* model : detail::live_models(session)) {
    modules.push_back(model->module);
  }
  return modules;
}

detail::ListComponents lister(Session& session, detail::CheckpointUse use) {
  return [&session, use](const std::vector<bool>& with_weights) {
    return detail::components_of(session, with_weights, use);
  };
}

void after_load(Session& session, const std::vector<bool>& has_weights) {
  session.prepared.step_watch->forget();
  const auto models = detail::live_models(session);
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (has_weights[i]) models[i]->placement.awaits_values = false;
    models[i]->strategies.after_load();
  }
}

void warn_inside_window(const Session& session) {
  if (session.clock.sync_gradients()) return;
  session.world.logger().log_once_per_world(
      LogLevel::warning,
      "checkpoint",
      "save_state() was called inside a window of micro-steps; the gradients "
      "they have added up so far are not saved. Save when sync_gradients()");
}

template <class Hooks, class Hook>
HookHandle add_hook(
    const std::shared_ptr<Session>& session,
    Hooks detail::CheckpointState::*list,
    Hook hook) {
  detail::CheckpointState& checkpoints = *session->services.checkpoints;
  const std::int64_t id = checkpoints.next_hook++;
  (checkpoints.*list).emplace_back(id, std::move(hook));
  return HookHandle([weak = std::weak_ptr<Session>(session), list, id] {
    const auto alive = weak.lock();
    if (!alive) return;
    std::erase_if(
        (*alive->services.checkpoints).*list,
        [id](const auto& entry) { return entry.first == id; });
  });
}

}  // namespace

SaveTicket Accelerator::save_state(const SaveStateOptions& options) const {
  return save_state(std::filesystem::path(), options);
}

SaveTicket Accelerator::save_state(
    const std::filesystem::path& output_dir,
    const SaveStateOptions& options) const {
  Session& session = *session_;
  require_no_join(session, "save_state()");
  const detail::StepPartScope part(
      session.services.steps.get(), detail::StepPart::checkpoint);
  SaveTicket ticket = detail::save_checkpoint(
      *session.services.checkpoints,
      output_dir,
      options,
      modules_of(session),
      lister(session, detail::CheckpointUse::save));
  if (ticket.was_skipped()) return ticket;
  warn_inside_window(session);
  session.services.tracking->note_checkpoint(
      ticket.path().string(), [ticket] { return ticket.is_done(); });
  return ticket;
}

void Accelerator::load_state(const LoadStateOptions& options) const {
  load_state(std::filesystem::path(), options);
}

void Accelerator::load_state(
    const std::filesystem::path& input_dir,
    const LoadStateOptions& options) const {
  Session& session = *session_;
  require_no_join(session, "load_state()");
  const detail::StepPartScope part(
      session.services.steps.get(), detail::StepPart::checkpoint);
  const std::vector<bool> has_weights = detail::load_checkpoint(
      *session.services.checkpoints,
      input_dir,
      options,
      modules_of(session),
      lister(session, detail::CheckpointUse::load));
  after_load(session, has_weights);
}

bool Accelerator::resume(const LoadStateOptions& options) const {
  Session& session = *session_;
  require_no_join(session, "resume()");
  const detail::StepPartScope part(
      session.services.steps.get(), detail::StepPart::checkpoint);
  const auto has_weights = detail::resume_checkpoint(
      *session.services.checkpoints,
      options,
      modules_of(session),
      lister(session, detail::CheckpointUse::load));
  if (has_weights) after_load(session, *has_weights);
  return has_weights.has_value();
}

std::optional<std::filesystem::path> Checkpoints::latest() const {
  require_no_join(*session_, "checkpoints().latest()");
  return detail::agree_on_newest(*session_->services.checkpoints);
}

void Accelerator::register_object(detail::AnyStateful object) const {
  session_->services.checkpoints->objects.push_back(std::move(object));
}

HookHandle Checkpoints::register_save_state_pre_hook(
    std::function<void(SaveHookContext&)> hook) const {
  return add_hook(
      session_, &detail::CheckpointState::save_hooks, std::move(hook));
}

HookHandle Checkpoints::register_load_state_pre_hook(
    std::function<void(LoadHookContext&)> hook) const {
  return add_hook(
      session_, &detail::CheckpointState::load_hooks, std::move(hook));
}

const ProjectConfiguration& Checkpoints::project_configuration() const {
  return session_->services.checkpoints->project;
}

void Checkpoints::set_iteration(std::optional<std::int64_t> iteration) const {
  session_->services.checkpoints->project.iteration = iteration;
}

}  // namespace accelerate
