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
    : Accelerator(options, {}) {}

Accelerator::Accelerator(
    const AcceleratorOptions& options,
    const std::vector<detail::AddedTechnique>& added)
    : AcceleratorCheckpoints(detail::make_session(options, added)),
      step_(&session_->step) {}

AutocastScope Accelerator::autocast() const {
  return autocast(session_->options.autocast);
}

AutocastScope Accelerator::autocast(const AutocastOptions& options) const {
  return AutocastScope(
      device().type(),
      detail::autocast_dtype(session_->options.precision),
      options);
}

const std::string& Accelerator::deepspeed_config() const {
  return session_->layout.plan_request.training.deepspeed_config;
}

at::Device AcceleratorProcesses::device() const {
  return session_->world.device();
}

int AcceleratorProcesses::num_processes() const {
  return session_->world.size();
}

int AcceleratorProcesses::process_index() const {
  return session_->world.rank();
}

int AcceleratorProcesses::local_process_index() const {
  return session_->world.local_rank();
}

bool AcceleratorProcesses::is_main_process() const {
  return process_index() == 0;
}

bool AcceleratorProcesses::is_local_main_process() const {
  return local_process_index() == 0;
}

bool AcceleratorProcesses::is_last_process() const {
  return process_index() == num_processes() - 1;
}

Precision AcceleratorProcesses::mixed_precision() const {
  return session_->options.precision;
}

const std::string& AcceleratorProcesses::project_dir() const {
  return session_->services.checkpoints->project.project_dir;
}

const World& AcceleratorProcesses::world() const { return session_->world; }

const Mesh& AcceleratorProcesses::mesh() const { return session_->layout.mesh; }

void AcceleratorCollectives::set_trigger() const {
  session_->services.ending.trigger = true;
}

bool AcceleratorCollectives::check_trigger() const {
  const bool was_set = detail::is_true_on_any_rank(
      world().group(), session_->services.ending.trigger);
  if (was_set) session_->services.ending.trigger = false;
  return was_set;
}

bool AcceleratorCollectives::is_told_to_end() const {
  detail::Session& session = *session_;
  if (!session.services.ending.preemption) {
    std::vector<int> signals = session.services.ending.preemption_signals;
    if (signals.empty()) signals.push_back(SIGTERM);
    session.services.ending.preemption =
        std::make_unique<detail::SignalFlag>(signals);
  }
  return session.services.ending.preemption->received() != 0;
}

bool AcceleratorCollectives::check_preemption() const {
  return detail::is_true_on_any_rank(world().group(), is_told_to_end());
}

std::string Accelerator::explain_settings() const {
  return session_->layout.settings.explain(detail::ExplainedRows::of_program);
}

std::int64_t AcceleratorCollectives::loader_remainder() const {
  const detail::LoaderProgress* loader = session_->active_loader();
  return loader != nullptr && loader->is_last_batch ? loader->remainder : 0;
}

void AcceleratorCollectives::refuse_gather_object() {
  throw ConfigError(
      "[train] gather_for_metrics was given use_gather_object for values that "
      "cannot be sent as objects; define object_to_bytes() and "
      "object_from_bytes() for their type, or leave the option out");
}

void AcceleratorCollectives::keep_first_rows(
    const detail::NestedParts& parts,
    std::int64_t rows) {
  for (at::Tensor* const tensor : parts.tensors) {
    if (tensor->defined() && tensor->dim() > 0 && tensor->size(0) > rows)
      *tensor = tensor->narrow(0, 0, rows);
  }
  for (const detail::NestedLeaf& list : parts.lists) {
    if (list.operations->size(list.object) > rows)
      list.operations->cut(list.object, 0, rows);
  }
}

}  // namespace accelerate
