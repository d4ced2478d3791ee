#include <accelerate/planning.h>

#include <algorithm>
#include <utility>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"
#include "planning/layout/layout_memory.h"
#include "planning/layout/layout_text.h"
#include "planning/layout/model_costs.h"
#include "planning/layout/search.h"
#include "planning/layout/step_time.h"
#include "planning/training_memory.h"

namespace accelerate {

namespace {

using detail::format;
using detail::LayoutCase;
using detail::ModelCosts;
using detail::usable_bytes;

std::string what_binds(const PlannedLayout& planned, std::uint64_t usable) {
  if (planned.memory.total() > usable) return "memory";
  std::string most = "computing";
  double seconds = 0;
  const auto consider = [&](const std::string& name, double value) {
    if (value <= seconds) return;
    seconds = value;
    most = name;
  };
  consider("bubble", planned.times.bubble);
  consider("optimizer", planned.times.optimizer);
  consider("disk", planned.times.disk);
  for (const auto& [kind, value] : planned.times.exposed) consider(kind, value);
  // A part that takes less than a twentieth of the step does not bind.
  return seconds < 0.05 * planned.times.step_seconds ? "computing" : most;
}

LayoutPlanOptions complete(LayoutPlanOptions options) {
  if (!options.cluster) options.cluster.emplace();
  detail::check_options(options);
  return options;
}

PlannedLayout simulate(const LayoutCase& of, const LayoutMemory& memory) {
  PlannedLayout planned{
      .layout = of.layout,
      .memory = memory,
      .times = detail::simulate_step(of)};
  planned.binds = what_binds(planned, usable_bytes(of.options));
  return planned;
}

/// A layout before it is simulated.
struct Candidate {
  TrainingLayout layout;
  double seconds = 0;
};

// Returns layouts that might fit, fastest by estimate first, and adds the
// others to `too_large`.
std::vector<Candidate> candidates_of(
    const ModelCosts& model,
    const LayoutPlanOptions& options,
    std::vector<TrainingLayout>& too_large) {
  const auto usable = static_cast<double>(usable_bytes(options));
  std::vector<Candidate> candidates;
  for (TrainingLayout& layout : detail::all_layouts(model, options)) {
    const LayoutCase of{model, layout, options};
    if (detail::least_bytes(of) > usable) {
      too_large.push_back(std::move(layout));
      continue;
    }
    const double seconds = detail::estimate_step(of);
    candidates.push_back({std::move(layout), seconds});
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::seconds);
  return candidates;
}

void require_layouts(
    const std::vector<TrainingLayout>& too_large,
    const std::vector<Candidate>& candidates,
    const LayoutPlanOptions& options) {
  if (!too_large.empty() || !candidates.empty()) return;
  throw ConfigError(format(
      "[planning] no layout of {} ranks divides the layers, heads, sequence of "
      "{} and batch of {} samples of this model; fix fewer degrees, or use "
      "another number of ranks or more samples per step",
      options.num_ranks,
      options.sequence_length,
      detail::samples_of_step(options)));
}

}  // namespace

PlannedLayout simulate_layout(
    const TransformerShape& shape,
    const TrainingLayout& layout,
    const LayoutPlanOptions& given) {
  const LayoutPlanOptions options = complete(given);
  const ModelCosts model = detail::model_costs(shape);
  if (const std::string complaint =
          detail::layout_complaint(model, layout, options);
      !complaint.empty()) {
    throw ConfigError(
        format("[planning] {}: {}", layout.describe(), complaint));
  }
  const LayoutCase of{model, layout, options};
  detail::KeptMicroBatches kept;
  return simulate(of, detail::layout_memory(of, kept));
}

LayoutPlan plan_layout(
    const TransformerShape& shape,
    const LayoutPlanOptions& given) {
  const LayoutPlanOptions options = complete(given);
  const ModelCosts model = detail::model_costs(shape);
  std::vector<TrainingLayout> too_large;
  const std::vector<Candidate> candidates =
      candidates_of(model, options, too_large);
  require_layouts(too_large, candidates, options);
  const std::uint64_t usable = usable_bytes(options);
  detail::KeptMicroBatches kept;
  std::vector<PlannedLayout> fitting, others;
  for (const Candidate& candidate : candidates) {
    const LayoutCase of{model, candidate.layout, options};
    const LayoutMemory memory = detail::layout_memory(of, kept);
    if (memory.total() <= usable) {
      fitting.push_back(simulate(of, memory));
      if (fitting.size() == options.num_simulated) break;
    } else if (others.size() < options.num_simulated) {
      others.push_back(
          {.layout = candidate.layout, .memory = memory, .binds = "memory"});
    }
  }
  // Layouts that need far too much are shown only if none fits.
  if (fitting.empty()) {
    for (const TrainingLayout& layout : too_large) {
      others.push_back(
          {.layout = layout,
           .memory = detail::layout_memory({model, layout, options}, kept),
           .binds = "memory"});
    }
    std::ranges::stable_sort(others, [](const auto& a, const auto& b) {
      return a.memory.total() < b.memory.total();
    });
    others.resize(std::min<std::size_t>(others.size(), options.num_simulated));
  }
  for (PlannedLayout& each : others)
    each = simulate({model, each.layout, options}, each.memory);
  std::ranges::stable_sort(fitting, [](const auto& a, const auto& b) {
    return a.times.step_seconds < b.times.step_seconds;
  });
  return {
      model.shape,
      options,
      std::move(fitting),
      std::move(others),
      candidates.size() + too_large.size()};
}

LayoutPlan::LayoutPlan(
    TransformerShape shape,
    LayoutPlanOptions options,
    std::vector<PlannedLayout> fitting,
    std::vector<PlannedLayout> not_fitting,
    std::size_t num_considered)
    : shape_(std::move(shape)),
      options_(std::move(options)),
      fitting_(std::move(fitting)),
      not_fitting_(std::move(not_fitting)),
      num_considered_(num_considered) {}

const PlannedLayout& LayoutPlan::best() const {
  if (!fitting_.empty()) return fitting_.front();
  if (not_fitting_.empty()) {
    throw ConfigError(
        "[planning] this plan must have layouts, but has none: it was made "
        "without any, or moved from");
  }
  throw ConfigError(format(
      "[planning] no layout of {} ranks fits into {}: the smallest, {}, needs "
      "{}; use more ranks, a shorter sequence, or ranks with more memory",
      options_.num_ranks,
      detail::format_size(static_cast<double>(usable_bytes(options_))),
      not_fitting_.front().layout.describe(),
      detail::format_size(
          static_cast<double>(not_fitting_.front().memory.total()))));
}

std::string LayoutPlan::explain(std::size_t max_layouts) const {
  return detail::explain_plan(
      shape_, options_, fitting_, not_fitting_, num_considered_, max_layouts);
}

std::string LayoutPlan::config_text() const {
  return detail::layout_config(best().layout, options_);
}

}  // namespace accelerate
