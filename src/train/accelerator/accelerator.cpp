#include <accelerate/accelerator.h>

#include <csignal>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>

#include <accelerate/empty_weights.h>
#include <accelerate/environment.h>
#include <accelerate/error.h>

#include "checkpoint/components/states.h"
#include "comm/collectives/any_rank.h"
#include "comm/group/group_impl.h"
#include "config/environment.h"
#include "config/files/config_file.h"
#include "config/user_variables.h"
#include "params/layout.h"
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
  return session_->layout.settings.explain(detail::ExplainedRows::of_program) +
      detail::explain_nccl_variables(detail::Environment::current());
}

std::int64_t Accelerator::loader_remainder() const {
  const detail::LoaderProgress* loader = session_->active_loader();
  return loader != nullptr && loader->is_last_batch ? loader->remainder : 0;
}

void detail::refuse_gather_object() {
  throw ConfigError(
      "[train] gather_for_metrics has use_gather_object for values that cannot "
      "be sent as objects; define object_to_bytes() and object_from_bytes() "
      "for their type, or leave the option out");
}

void detail::keep_first_rows(const NestedParts& parts, std::int64_t rows) {
  for (at::Tensor* const tensor : parts.tensors) {
    if (tensor->defined() && tensor->dim() > 0 && tensor->size(0) > rows)
      *tensor = tensor->narrow(0, 0, rows);
  }
  for (const NestedLeaf& list : parts.lists) {
    if (list.operations->size(list.object) > rows)
      list.operations->resize(list.object, rows);
  }
}

namespace detail {

struct ModelConstruction::Scope {
  explicit Scope(Group ranks)
      : group(std::move(ranks)), state_before(generator_state(at::kCPU)) {}

  Group group;
  at::Tensor state_before;
  std::optional<EmptyWeightsScope> empty = std::nullopt;
};

ModelConstruction::ModelConstruction(const Mesh& mesh, bool only_on_rank_0) {
  const Group group = replica_group(Layout(), mesh);
  if (!only_on_rank_0 || group.size() == 1) return;
  scope_ = std::make_unique<Scope>(group);
  if (group.rank() != 0) scope_->empty.emplace(/*include_buffers=*/true);
}

ModelConstruction::~ModelConstruction() = default;
ModelConstruction::ModelConstruction(ModelConstruction&&) noexcept = default;

void ModelConstruction::finish() {
  if (!scope_) return;
  scope_->empty.reset();
  // Only rank 0 has drawn random numbers. Ranks whose generators were in the
  // same state before adopt rank 0's state after drawing.
  const Group& group = scope_->group;
  const at::Tensor before = scope_->state_before.clone();
  const at::Tensor after = generator_state(at::kCPU);
  group.broadcast(before, 0);
  group.broadcast(after, 0);
  if (!at::equal(before, scope_->state_before)) return;
  set_generator_state(at::kCPU, after);
}

}  // namespace detail

detail::ModelConstruction Accelerator::begin_construction() const {
  return {mesh(), session_->layout.plan.makes_on_rank_0};
}

std::optional<std::filesystem::path> write_basic_config(
    const BasicConfigOptions& options) {
  std::filesystem::path path = options.save_location;
  if (path.empty()) {
    const auto usual =
        detail::default_config_path(detail::Environment::current());
    if (!usual) {
      throw ConfigError(
          "[config] none of HF_HOME, XDG_CACHE_HOME and HOME is set; pass "
          "write_basic_config() a save_location");
    }
    path = *usual;
  }
  const int num_devices = options.num_devices.value_or(
      static_cast<int>(at::accelerator::deviceCount()));
  if (!detail::write_default_config(path, options.mixed_precision, num_devices))
    return std::nullopt;
  return path;
}

}  // namespace accelerate
