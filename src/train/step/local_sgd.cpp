#include <accelerate/local_sgd.h>

#include <utility>

#include <accelerate/error.h>

#include "base/require.h"
#include "train/session/session.h"
#include "train/step/step_watch.h"

namespace accelerate {

LocalSGD::LocalSGD(
    const Accelerator& /*accelerator*/,
    std::shared_ptr<detail::PreparedModel> model,
    const LocalSGDOptions& options)
    : model_(std::move(model)), local_sgd_steps_(options.local_sgd_steps) {
  detail::require_at_least("train", "local_sgd_steps", local_sgd_steps_, 1);
  if (!options.enabled) return;
  if (const auto& complaint = model_->strategies.traits().local_sgd_complaint)
    throw ConfigError(*complaint);
  // A single rank averages nothing, but rejects the same models.
  is_active_ = true;
  before_ = model_->sync_gradients;
  // Ranks that share sequences take the same steps.
  model_->sync_gradients = before_ && model_->mesh.degree(Axis::context) > 1;
  model_->strategies.step_locally(true);
}

LocalSGD::~LocalSGD() { end(); }

void LocalSGD::step() {
  if (is_active_ && ++num_steps_ % local_sgd_steps_ == 0) average();
}

void LocalSGD::finish() {
  if (!is_active_) return;
  average();
  end();
}

void LocalSGD::end() {
  if (!std::exchange(is_active_, false)) return;
  model_->strategies.step_locally(false);
  model_->sync_gradients = before_;
}

void LocalSGD::average() {
  detail::require_no_join(*model_->session, "LocalSGD averages");
  model_->strategies.average_parameters(model_->table);
  model_->session->prepared.step_watch->forget();
}

}  // namespace accelerate
