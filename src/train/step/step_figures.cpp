#include <utility>
#include <vector>

#include <accelerate/tracker.h>

#include "track/run_tracking.h"
#include "train/session/prepared.h"
#include "train/step/gradients.h"

namespace accelerate::detail {

void end_step(
    const PreparedItems& prepared,
    RunTracking& tracking,
    const torch::optim::Optimizer& optimizer) {
  for (const auto& model : prepared.models) {
    model->strategies.after_step(optimizer);
    std::vector<StepFigure> figures = model->strategies.take_figures();
    if (figures.empty()) continue;
    TrackedValues values;
    values.reserve(figures.size());
    for (StepFigure& each : figures)
      values.push_back({std::move(each.name), each.value});
    tracking.add_figures(values);
  }
}

}  // namespace accelerate::detail
