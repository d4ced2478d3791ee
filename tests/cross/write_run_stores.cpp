#include <cmath>
#include <iostream>
#include <memory>
#include <string>

#include "cross/run_content.h"
#include "trackers/tracker_request.h"

// Logs a short run to MLflow, DVCLive or Trackio, in the place that the tools'
// environment variables give: write_run_stores mlflow|trackio, write_run_stores
// dvclive DIRECTORY.

int main(int argc, char** argv) {
  using namespace accelerate;
  if (argc < 2) {
    std::cerr << "usage: write_run_stores mlflow|trackio|dvclive [DIRECTORY]\n";
    return 2;
  }
  const std::string kind = argv[1];
  detail::TrackerRequest request;
  request.project_name = "cross";
  request.begin = 1'700'000'000.5;
  request.environment = detail::Environment::current();
  std::unique_ptr<GeneralTracker> tracker;
  if (kind == "mlflow") {
    request.init_kwargs = {
        {"run_name", "first"},
        {"tags", TrackedValues{{"team", "vision"}}},
        {"description", "why"}};
    tracker = detail::make_mlflow(request);
  } else if (kind == "trackio") {
    request.init_kwargs = {{"name", "first"}};
    tracker = detail::make_trackio(request);
  } else {
    request.init_kwargs = {{"dir", argv[2]}};
    tracker = detail::make_dvclive(request);
  }
  tracker->start();
  tracker->store_init_configuration(
      {{"lr", 1e-5}, {"amp", true}, {"note", "a: 'b'\n\xc3\xbc"}});
  for (int i = 0; i < 1500; ++i) {
    const LogTime time{.step = 2 * i, .seconds = 1'700'000'001.0 + i};
    tracker->log({{"train/loss", 1.0 / (i + 3)}, {"whole", i}}, time, {});
  }
  const LogTime end{.step = 3000, .seconds = 1'700'002'000.0};
  tracker->log({{"inf", INFINITY}, {"text", "two\nlines \u2713"}}, end, {});
  tracker->log_images("val/out", cross::gradient_images(), end, {});
  tracker->log_table("results", cross::mixed_table(), end, {});
  tracker->log_histogram("weights", cross::three_buckets(), end, {});
  tracker->log_figure("curve", "<svg/>", end, {});
  tracker->finish();
  return 0;
}
