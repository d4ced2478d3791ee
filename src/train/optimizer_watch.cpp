#include "train/optimizer_watch.h"

#include <mutex>
#include <typeinfo>
#include <utility>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "optim/optimizers/rate_options.h"

namespace accelerate::detail {

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;

// Shared by the watcher and the watched; an optimizer may be destroyed on
// another thread.
class Watch {
 public:
  explicit Watch(std::function<void()> on_destruction)
      : on_destruction_(std::move(on_destruction)) {}

  void report() {
    const std::lock_guard lock(mutex_);
    if (on_destruction_) std::exchange(on_destruction_, nullptr)();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    on_destruction_ = nullptr;
  }

 private:
  std::mutex mutex_;
  std::function<void()> on_destruction_;
};

template <class Options>
class WatchedOptions final : public Options {
 public:
  WatchedOptions(
      const Options& options,
      std::unique_ptr<OptimizerOptions> before,
      std::shared_ptr<Watch> watch)
      : Options(options),
        before_(std::move(before)),
        watch_(std::move(watch)) {}
  WatchedOptions(const WatchedOptions&) = delete;
  WatchedOptions& operator=(const WatchedOptions&) = delete;
  ~WatchedOptions() override { watch_->report(); }

 private:
  // An optimizer that is prepared again has an earlier watch, and references
  // to its options stay valid.
  std::unique_ptr<OptimizerOptions> before_;
  std::shared_ptr<Watch> watch_;
};

// Gives access to the optimizer's protected options.
struct OpenOptimizer : Optimizer {
  static std::unique_ptr<OptimizerOptions>& defaults_of(Optimizer& optimizer) {
    return optimizer.*(&OpenOptimizer::defaults_);
  }
};

template <class Options>
bool replace_options(
    Optimizer& optimizer,
    const std::shared_ptr<Watch>& watch) {
  auto& defaults = OpenOptimizer::defaults_of(optimizer);
  const auto& type = typeid(*defaults);
  if (type != typeid(Options) && type != typeid(WatchedOptions<Options>))
    return false;
  const Options options = static_cast<const Options&>(*defaults);
  defaults = std::make_unique<WatchedOptions<Options>>(
      options, std::move(defaults), watch);
  return true;
}

}  // namespace

std::shared_ptr<void> watch_optimizer(
    Optimizer& optimizer,
    std::function<void()> on_destruction) {
  if (!OpenOptimizer::defaults_of(optimizer)) return nullptr;
  auto watch = std::make_shared<Watch>(std::move(on_destruction));
  const bool is_watched =
      replace_options<torch::optim::SGDOptions>(optimizer, watch) ||
      replace_options<torch::optim::AdamOptions>(optimizer, watch) ||
      replace_options<torch::optim::AdamWOptions>(optimizer, watch) ||
      replace_options<torch::optim::AdagradOptions>(optimizer, watch) ||
      replace_options<torch::optim::RMSpropOptions>(optimizer, watch) ||
      replace_options<torch::optim::LBFGSOptions>(optimizer, watch) ||
      replace_options<optim::RateOptions>(optimizer, watch);
  if (!is_watched) return nullptr;
  return {watch.get(), [watch](void*) { watch->stop(); }};
}

}  // namespace accelerate::detail
