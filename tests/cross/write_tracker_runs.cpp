#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

#include "cross/run_content.h"
#include "trackers/tracker_request.h"

// Writes a run with each tracker whose files Python packages read, and records
// what was logged: write_tracker_runs DIRECTORY.

namespace {

using namespace accelerate;
using nlohmann::json;

constexpr double kBegin = 1'700'000'000.25;
constexpr std::int64_t kNumSteps = 300;

TrackedValues configuration() {
  return {
      {"learning_rate", 1e-5},
      {"epochs", 3},
      {"large", std::int64_t{1} << 40},
      {"amp", true},
      {"model", "gr\u00fc\u00dfe: 'a' \"b\""},
      {"empty", ""}};
}

json configuration_json() {
  return {
      {"learning_rate", 1e-5},
      {"epochs", 3},
      {"large", std::int64_t{1} << 40},
      {"amp", true},
      {"model", "gr\u00fc\u00dfe: 'a' \"b\""},
      {"empty", ""}};
}

/// Logs every kind of value; returns the scalars as [step, name, value].
json log_everything(GeneralTracker& tracker) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  json scalars = json::array();
  tracker.start();
  tracker.store_init_configuration(configuration());
  for (std::int64_t step = 0; step < kNumSteps; ++step) {
    const LogTime time{
        .step = 3 * step, .seconds = kBegin + static_cast<double>(step)};
    const double loss =
        step == 7 ? std::numeric_limits<double>::infinity() : normal(random);
    tracker.log({{"train/loss", loss}}, time, {});
    tracker.log({{"whole", step * 1'000'003}, {"done", step == 9}}, time, {});
    scalars.push_back(
        {*time.step,
         std::isinf(loss) ? json("inf") : json(loss),
         step * 1'000'003,
         step == 9});
    if (step % 100 == 50) tracker.flush();
  }
  const LogTime end{.step = 3 * kNumSteps, .seconds = kBegin + 1000};
  // Longer than a block of W&B's file.
  tracker.log({{"long", std::string(100'000, 'x')}}, end, {});
  tracker.log({{"text", "two\nlines \u2713"}}, end, {});
  tracker.log({{"both", TrackedValues{{"a", 1.5}, {"b", 2}}}}, end, {});
  tracker.log_images("val/out", cross::gradient_images(), end, {});
  tracker.log_table("results", cross::mixed_table(), end, {});
  tracker.log_histogram("weights", cross::three_buckets(), end, {});
  tracker.finish();
  return scalars;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_tracker_runs DIRECTORY\n";
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  detail::TrackerRequest request;
  request.project_name = "a project";
  request.logging_dir = directory / "logs";
  request.begin = kBegin;
  request.warn = [](const std::string& line) { std::cerr << line << "\n"; };
  log_everything(*detail::make_tensorboard(request));
  request.init_kwargs = {
      {"dir", directory.string()},
      {"id", "cross1234"},
      {"name", "the name"},
      {"tags", TrackedValue::List{"a", "b"}},
      {"notes", "some notes"},
      {"config", TrackedValues{{"nested", TrackedValues{{"x", 1}}}}}};
  json expected;
  expected["scalars"] = log_everything(*detail::make_wandb(request));
  expected["config"] = configuration_json();
  expected["begin"] = kBegin;
  std::ofstream(directory / "expected.json") << expected;
  return 0;
}
