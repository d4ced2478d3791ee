// page_runs DIRECTORY: writes two runs, then a step and a checkpoint of the
// second for each line of standard input, and reports each write.

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>

#include "cli/run_journal.h"

using accelerate::TrackedHistogram;
using accelerate::testing::RunJournal;
namespace detail = accelerate::detail;

namespace {

constexpr const char* kFigure =
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 100 50'>"
    "<polyline points='0,40 30,20 60,30 100,5' fill='none' stroke='teal'/>"
    "</svg>";

void write_run(RunJournal& journal, double rate) {
  const double begin = 1000;
  journal.session(
      begin, {.command = {"./train"}, .host = "here", .num_processes = 2});
  journal.event(
      begin,
      {},
      {"config",
       "",
       "application/json",
       "{\"lr\": " + std::to_string(rate) + ", \"width\": 64}"});
  for (int step = 0; step < 1000; ++step) {
    const double time = begin + step;
    journal.scalars(
        time,
        step,
        {{"loss", 2 * std::exp(-step * rate / 100) + 0.1},
         {"accuracy", 1 - std::exp(-step * rate / 100)}});
    if (step % 100 != 0) continue;
    journal.event(time, {}, detail::system_event({{"cpu_percent", 50.0}}));
    journal.event(
        time, {}, detail::ranks_event({{0, step, 2, 90}, {1, step, 1, 80}}));
  }
  for (const int step : {300, 700})
    journal.event(
        begin + step,
        step,
        detail::checkpoint_event("checkpoints/" + std::to_string(step / 500)));
  journal.event(begin + 9, 9, detail::warning_event("<i>nearly</i> full"));
  journal.event(begin + 9, 9, detail::figure_event("plot", kFigure));
  journal.event(
      begin + 9,
      9,
      detail::histogram_event(
          "weights", TrackedHistogram{{0, 1, 2}, {3, 1}, 0, 2, 3, 4, 4}));
  journal.write();
}

}  // namespace

int main(int, char** arguments) {
  const std::filesystem::path directory = arguments[1];
  RunJournal slow(directory / "slow");
  RunJournal fast(directory / "fast");
  write_run(slow, 0.5);
  write_run(fast, 2);
  std::puts("written");
  std::fflush(stdout);
  std::string line;
  for (int step = 1000; std::getline(std::cin, line); ++step) {
    fast.scalars(1000 + step, step, {{"loss", 0.05}})
        .event(1000 + step, step, detail::checkpoint_event("checkpoints/2"))
        .write();
    std::puts("written");
    std::fflush(stdout);
  }
  return 0;
}
