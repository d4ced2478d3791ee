#include <accelerate/local_sgd.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "train/session.h"

namespace accelerate {

LocalSGD::LocalSGD(
    const Accelerator& accelerator,
    std::shared_ptr<detail::PreparedModel> model,
    const LocalSGDOptions& options)
    : model_(std::move(model)), local_sgd_steps_(options.local_sgd_steps) {
  if (local_sgd_steps_ < 1) {
    throw ConfigError(detail::concat(
        "[train] local_sgd_steps is ", local_sgd_steps_, "; it is at least 1"));
  }
  const Group& group = model_->mesh.group(Axis::replicate);
  if (!options.enabled || accelerator.num_processes() == 1) return;
  if (group.size() != accelerator.num_processes()) {
    throw ConfigError(
        "[train] LocalSGD averages whole models, but this one is split over "
        "ranks; use it with "
        "replicate alone");
  }
  group_ = group;
  before_ = model_->sync_gradients;
  model_->sync_gradients = false;
}

LocalSGD::~LocalSGD() {
  if (group_) model_->sync_gradients = before_;
}

void LocalSGD::step() {
  if (group_ && ++num_steps_ % local_sgd_steps_ == 0) average();
}

void LocalSGD::finish() {
  if (!group_) return;
  average();
  model_->sync_gradients = before_;
  group_.reset();
}

void LocalSGD::average() {
  detail::require_no_join(*model_->session, "LocalSGD averages");
  const at::NoGradGuard no_grad;
  for (const detail::Parameter& row : model_->table.rows()) {
    at::Tensor mean = row.local.detach();
    group_->all_reduce(mean);
    mean.div_(group_->size());
    if (!row.local.is_same(row.tensor)) row.tensor.detach().copy_(mean);
  }
}

}  // namespace accelerate
