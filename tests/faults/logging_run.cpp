// Logs 10 values in each of 1,000 steps per second, and writes to standard
// output when it logged each step, for the test that kills it.
// usage: logging_run DIRECTORY RUN LAST_STEP_KEPT NUM_STEPS ATTEMPT;
// LAST_STEP_KEPT -1 begins the run, other steps resume it. Values encode their
// step and the attempt that logged them.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

#include <unistd.h>

#include "faults/logged_value.h"
#include "track/run_tracking.h"

namespace {

using namespace accelerate;

std::int64_t nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace

int main(int, char** argv) {
  const std::int64_t kept = std::atoll(argv[3]);
  const std::int64_t num_steps = std::atoll(argv[4]);
  const std::int64_t attempt = std::atoll(argv[5]);
  detail::RunTracking tracking({.logging_dir = argv[1], .run_name = argv[2]});
  if (kept >= 0) tracking.resume({argv[2], kept});
  auto next = std::chrono::steady_clock::now();
  for (std::int64_t step = kept + 1; step < num_steps; ++step) {
    TrackedValues values;
    for (int i = 0; i < faults::kValuesInStep; ++i)
      values.push_back(
          {"value" + std::to_string(i),
           faults::logged_value(attempt, step, i)});
    tracking.log(std::move(values), step);
    const std::int64_t report[] = {step, nanoseconds()};
    if (write(STDOUT_FILENO, report, sizeof report) < 0) return 2;
    next += std::chrono::milliseconds(1);
    std::this_thread::sleep_until(next);
  }
  tracking.finish();
}
