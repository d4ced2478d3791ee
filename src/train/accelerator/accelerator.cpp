#include <accelerate/accelerator.h>

#include <csignal>
#include <memory>
#include <vector>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/collectives/any_rank.h"
#include "comm/group/group_impl.h"
#include "precision/support.h"
#include "train/accelerator/make_session.h"
#include "train/session/session.h"

namespace accelerate {

Accelerator::Accelerator(const AcceleratorOptions& options)
    : session_(detail::make_session(options)), step_(&session_->step) {}

AutocastScope Accelerator::autocast() const {
  return autocast(session_->options.autocast);
}

AutocastScope Accelerator::autocast(const AutocastOptions& options) const {
  return AutocastScope(
      device().type(),
      detail::autocast_dtype(session_->options.precision),
      options);
}

const World& Accelerator::world() const { return session_->world; }

const Mesh& Accelerator::mesh() const { return session_->layout.mesh; }

GradientState Accelerator::gradient_state() const {
  return GradientState(session_);
}

Trackers Accelerator::trackers() const { return Trackers(session_); }

Checkpoints Accelerator::checkpoints() const { return Checkpoints(session_); }

void Accelerator::set_trigger() const {
  session_->services.ending.trigger = true;
}

bool Accelerator::check_trigger() const {
  const bool was_set = detail::is_true_on_any_rank(
      world().group(), session_->services.ending.trigger);
  if (was_set) session_->services.ending.trigger = false;
  return was_set;
}

bool detail::is_told_to_end(Session& session) {
  Ending& ending = session.services.ending;
  if (!ending.preemption) {
    std::vector<int> signals = ending.preemption_signals;
    if (signals.empty()) signals.push_back(SIGTERM);
    ending.preemption = std::make_unique<SignalFlag>(signals);
  }
  return ending.preemption->received() != 0;
}

bool Accelerator::check_preemption() const {
  return detail::is_true_on_any_rank(
      world().group(), detail::is_told_to_end(*session_));
}

std::string Accelerator::explain_settings() const {
  return session_->layout.settings.explain(detail::ExplainedRows::of_program);
}

std::int64_t Accelerator::loader_remainder() const {
  const detail::LoaderProgress* loader = session_->active_loader();
  return loader != nullptr && loader->is_last_batch ? loader->remainder : 0;
}

void detail::refuse_gather_object() {
  throw ConfigError(
      "[train] gather_for_metrics was given use_gather_object for values that "
      "cannot be sent as objects; define object_to_bytes() and "
      "object_from_bytes() for their type, or leave the option out");
}

void detail::keep_first_rows(const NestedParts& parts, std::int64_t rows) {
  for (at::Tensor* const tensor : parts.tensors) {
    if (tensor->defined() && tensor->dim() > 0 && tensor->size(0) > rows)
      *tensor = tensor->narrow(0, 0, rows);
  }
  for (const NestedLeaf& list : parts.lists) {
    if (list.operations->size(list.object) > rows)
      list.operations->cut(list.object, 0, rows);
  }
}

}  // namespace accelerate
