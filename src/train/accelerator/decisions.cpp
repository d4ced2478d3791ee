#include "train/accelerator/decisions.h"

#include <string>
#include <utility>

#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"
#include "checkpoint/save/save_target.h"
#include "engines/fp8_recipe.h"
#include "precision/support.h"
#include "train/session.h"
#include "train/settings/ignored_options.h"
#include "train/step/accumulation_window.h"

namespace accelerate::detail {

namespace {

// Accelerate's launcher always passes a precision, "no" by default.
bool precision_is_open(
    const AcceleratorOptions& options,
    const Settings& settings) {
  return !options.mixed_precision &&
      requested_precision(options, settings) == Precision::no;
}

// Collects the ConfigError that `body` throws, if any; other errors propagate.
template <class Body>
void note_complaints(std::vector<std::string>& complaints, Body&& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    complaints.emplace_back(error.what());
  }
}

// Applies the window that a DeepSpeed configuration sets, if any.
void apply_window_of_engine(
    const AcceleratorOptions& options,
    Decisions& decisions,
    std::vector<std::string>& complaints) {
  const auto steps =
      decisions.plan_request.training.step.gradient_accumulation_steps;
  if (!steps) return;
  const bool is_set = options.gradient_accumulation_steps.value_or(1) > 1 ||
      options.gradient_accumulation.num_steps;
  if (is_set && decisions.window != *steps) {
    complaints.push_back(format(
        "[train] gradient_accumulation_steps is {}, and {} in the DeepSpeed "
        "configuration; correct it there, or write \"auto\"",
        decisions.window,
        *steps));
  }
  decisions.window = *steps;
}

// DeepSpeed's configuration chooses the precision if nothing else did.
void apply_precision_of_engine(Decisions& decisions) {
  const std::string& chosen =
      decisions.plan_request.training.precision.mixed_precision;
  decisions.precision = parse_precision(chosen);
  decisions.request_sources.mixed_precision = chosen;
  decisions.request_sources.precision_is_open = false;
}

void read_float8(
    const AcceleratorOptions& options,
    const Settings& settings,
    const Environment& environment,
    Decisions& decisions) {
  const std::int64_t statistics_interval = options.fp8_statistics_interval;
  if (statistics_interval < 0) {
    throw ConfigError(format(
        "[train] fp8_statistics_interval is {}; it must be a number of steps, "
        "or 0 for none",
        statistics_interval));
  }
  if (decisions.precision == Precision::fp8) {
    decisions.plan_request.float8 =
        read_float8_request(options.fp8_recipe, settings, environment);
    decisions.plan_request.float8->statistics_interval = statistics_interval;
    decisions.plan_request.float8->attention = options.fp8_attention;
    return;
  }
  const auto ignore = [&](std::string name) {
    decisions.plan_request.training.ignored.push_back(
        {std::move(name), "mixed_precision is not fp8", "code"});
  };
  if (options.fp8_recipe) ignore("fp8_recipe");
  if (statistics_interval != 0) ignore("fp8_statistics_interval");
  if (options.fp8_attention != Float8Attention::none) ignore("fp8_attention");
}

}  // namespace

Precision requested_precision(
    const AcceleratorOptions& options,
    const Settings& settings) {
  if (options.mixed_precision) return *options.mixed_precision;
  return parse_precision(*settings.text("mixed_precision"));
}

int accumulation_window(
    const AcceleratorOptions& options,
    const Settings& settings) {
  const auto& steps = options.gradient_accumulation_steps;
  const auto& num_steps = options.gradient_accumulation.num_steps;
  if (steps && num_steps && *steps != 1 && *steps != *num_steps) {
    throw ConfigError(format(
        "[train] gradient_accumulation_steps is {} and "
        "gradient_accumulation.num_steps {}; give one of them",
        *steps,
        *num_steps));
  }
  const int window = num_steps ? *num_steps
      : steps
      ? *steps
      : static_cast<int>(*settings.integer("gradient_accumulation_steps"));
  return require_at_least("train", "gradient_accumulation_steps", window, 1);
}

Decisions decide(
    const AcceleratorOptions& options,
    const std::vector<AddedTechnique>& added,
    const World& world,
    const Settings& settings,
    const Environment& environment) {
  Decisions decisions;
  std::vector<std::string> complaints;
  note_complaints(complaints, [&] {
    decisions.window = accumulation_window(options, settings);
  });
  note_complaints(
      complaints, [&] { SignalFlag::check(options.preemption_signals); });
  decisions.request_sources = {
      .parallel = options.parallel,
      .mixed_precision =
          std::string(name_of(requested_precision(options, settings))),
      .precision_is_open = precision_is_open(options, settings),
      .num_local_ranks = world.local_size(),
      .settings = settings,
      .environment = environment};
  decisions.plan_request = {
      .training = read_training_request(decisions.request_sources),
      .replicate = options.parallel.replicate_options,
      .master_weights = options.master_weights,
      .keep_freed_blocks = options.keep_freed_blocks,
      .heap_is_tuned = environment.has("MALLOC_MMAP_THRESHOLD_"),
      .num_ranks = world.size(),
      .num_local_ranks = world.local_size(),
      .device = world.device(),
      .added = added};
  if (decisions.plan_request.training.precision.master_weights)
    decisions.plan_request.master_weights = true;
  apply_precision_of_engine(decisions);
  if (auto complaint =
          precision_complaint(decisions.precision, world.device())) {
    complaints.push_back(*complaint);
  }
  note_complaints(
      complaints, [&] { const GradScaler checked(options.grad_scaler); });
  note_complaints(
      complaints, [&] { require_valid(options.project_configuration); });
  note_complaints(complaints, [&] {
    auto& ignored = decisions.plan_request.training.ignored;
    for (auto& setting :
         options_without_effect(options, settings, decisions.precision))
      ignored.push_back(std::move(setting));
  });
  note_complaints(complaints, [&] {
    read_float8(options, settings, environment, decisions);
  });
  note_complaints(
      complaints, [&] { decisions.plan = make_plan(decisions.plan_request); });
  apply_window_of_engine(options, decisions, complaints);
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  return decisions;
}

}  // namespace accelerate::detail
