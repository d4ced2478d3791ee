// What Accelerator::log() costs a training loop: with the journal alone, and
// with all of the library's own trackers in addition. The loop trains a small
// net between calls, so that the calls find the processor's caches as a step
// leaves them. Finally, calls with nothing between them: the rate at which they
// start to wait for the journal.
#include <stdlib.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "interleave.h"
#include "report.h"

namespace {

using namespace accelerate::benchmarks;
namespace F = torch::nn::functional;
using Clock = std::chrono::steady_clock;
using accelerate::Accelerator;

constexpr int kBlocks = 40;
constexpr int kStepsInBlock = 100;

class WorkingDirectory {
 public:
  WorkingDirectory() {
    std::string name =
        (std::filesystem::temp_directory_path() / "track-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
    // Trackers without a configured directory write here.
    std::filesystem::current_path(path_);
    ::setenv("TRACKIO_DIR", (path_ / "trackio").c_str(), 1);
    ::setenv("WANDB_MODE", "offline", 1);
    ::unsetenv("MLFLOW_TRACKING_URI");
  }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;
  ~WorkingDirectory() {
    std::error_code ignored;
    std::filesystem::current_path("/", ignored);
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::filesystem::path path_;
};

accelerate::AcceleratorOptions options_of(const std::string& run) {
  accelerate::AcceleratorOptions options;
  options.cpu = true;
  options.project_dir = "runs";
  options.run_name = run;
  return options;
}

/// The loop's own work: a step of a 256-512-512-10 MLP, batch 64, by hand.
class Step {
 public:
  double operator()() {
    sgd_.zero_grad();
    const torch::Tensor loss =
        F::cross_entropy(net_->forward(inputs_), labels_);
    loss.backward();
    sgd_.step();
    return loss.item<double>();
  }

 private:
  torch::Tensor inputs_ = torch::randn({64, 256});
  torch::Tensor labels_ = torch::randint(10, {64});
  torch::nn::Sequential net_{
      torch::nn::Linear(256, 512),
      torch::nn::ReLU(),
      torch::nn::Linear(512, 512),
      torch::nn::ReLU(),
      torch::nn::Linear(512, 10)};
  torch::optim::SGD sgd_{net_->parameters(), torch::optim::SGDOptions(1e-3)};
};

/// A loop that logs its loss at every step.
class LoggingLoop {
 public:
  LoggingLoop(const Accelerator& accelerator, Step& step)
      : accelerator_(accelerator), step_(step) {}

  /// Returns the microseconds per call of log(), as the mean over a block of
  /// steps: this includes waking a thread now and then.
  double block() {
    Clock::duration total{};
    for (int i = 0; i < kStepsInBlock; ++i) {
      const double loss = step_();
      // Brings the clock's own code into the caches.
      (void)Clock::now();
      const auto start = Clock::now();
      accelerator_.log({{"loss", loss}}, num_steps_++);
      total += Clock::now() - start;
    }
    return std::chrono::duration<double, std::micro>(total).count() /
        kStepsInBlock;
  }

 private:
  const Accelerator& accelerator_;
  Step& step_;
  std::int64_t num_steps_ = 0;
};

/// The baseline is the same call without a journal or trackers.
void measure_log(
    const std::string& metric,
    const Accelerator& accelerator,
    Step& step) {
  accelerate::AcceleratorOptions silent = options_of("silent");
  silent.journal = false;
  const Accelerator nobody(silent);
  LoggingLoop logged(accelerator, step), ignored(nobody, step);
  logged.block();
  ignored.block();
  std::vector<double> ours, baseline;
  for (int i = 0; i < kBlocks; ++i) {
    baseline.push_back(ignored.block());
    ours.push_back(logged.block());
  }
  report(
      {"track",
       metric,
       median(ours),
       "us",
       median(baseline),
       median(ours) / median(baseline),
       ours.size()});
}

/// Values per second while log() waits for the journal, as back-to-back calls
/// soon do. The baseline is the rate before they wait.
void measure_rate(const Accelerator& accelerator) {
  constexpr int kValues = 10;
  constexpr int kCallsInWindow = 20'000;
  constexpr std::chrono::seconds kLimit{8};
  std::vector<double> rates;
  std::int64_t step = 0;
  const auto begin = Clock::now();
  while (Clock::now() - begin < kLimit) {
    const auto start = Clock::now();
    for (int i = 0; i < kCallsInWindow; ++i, ++step) {
      const auto x = static_cast<double>(step);
      accelerator.log(
          {{"a", x},
           {"b", x},
           {"c", x},
           {"d", x},
           {"e", x},
           {"f", x},
           {"g", x},
           {"h", x},
           {"i", x},
           {"j", x}},
          step);
    }
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    rates.push_back(kValues * kCallsInWindow / elapsed.count());
  }
  const double first = rates.front();
  // The second half of the windows, in which the queue is full.
  const std::vector<double> last(
      rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2),
      rates.end());
  double seconds = 0;
  for (const double rate : last) seconds += 1 / rate;
  const double sustained = static_cast<double>(last.size()) / seconds;
  report(
      {"track",
       "values_before_waiting",
       sustained,
       "1/s",
       first,
       sustained / first,
       last.size()});
}

}  // namespace

int main() {
  const WorkingDirectory directory;
  keep_freed_memory();
  torch::set_num_threads(1);
  torch::manual_seed(1);
  Step step;
  {
    const Accelerator accelerator(options_of("journal"));
    measure_log("log_us", accelerator, step);
    accelerator.end_training();
  }
  {
    accelerate::AcceleratorOptions options = options_of("all");
    options.log_with = {"tensorboard", "wandb", "mlflow", "dvclive", "trackio"};
    const Accelerator accelerator(options);
    accelerator.init_trackers("benchmark", {{"lr", 1e-3}});
    measure_log("log_all_trackers_us", accelerator, step);
    accelerator.end_training();
  }
  const Accelerator accelerator(options_of("rate"));
  measure_rate(accelerator);
  accelerator.end_training();
  return 0;
}
