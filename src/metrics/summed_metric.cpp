#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/detail/handles.h>
#include <accelerate/metrics.h>

#include "metrics/samples.h"

namespace accelerate {

namespace {

// The sums of a metric that was not moved from.
const at::Tensor& present(const at::Tensor& sums) {
  if (!sums.defined()) detail::throw_moved_from("metric");
  return sums;
}

}  // namespace

SummedMetric::SummedMetric(
    MetricRanks ranks,
    std::string kind,
    const at::Tensor& zeros)
    : ranks_(std::move(ranks)), kind_(std::move(kind)), sums_(zeros) {}

void SummedMetric::reset() { sums_ = at::zeros_like(present(sums_)); }

void SummedMetric::add(const at::Tensor& amounts) {
  const at::NoGradGuard no_grad;
  // Sums stay where the batches are, so that adding does not wait for a device.
  sums_ = present(sums_).to(amounts.device()) + amounts;
}

at::Tensor SummedMetric::total() const {
  at::Tensor sums = present(sums_).cpu().clone();
  if (ranks_.group.size() > 1) ranks_.group.all_reduce(sums);
  return sums;
}

StateDict SummedMetric::state_dict() const {
  return {{"metric", kind_}, {"sums", total()}};
}

void SummedMetric::load_state_dict(const StateDict& state) {
  detail::require_state_of(kind_, state);
  const at::Tensor sums =
      detail::state_tensor(kind_, state, "sums", present(sums_).sizes())
          .to(sums_.scalar_type());
  // One rank continues with the sums of all.
  sums_ = ranks_.group.rank() == 0 ? sums.clone() : at::zeros_like(sums);
}

}  // namespace accelerate
