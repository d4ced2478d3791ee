#include "train/optimizers/optimizer_watch.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
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

using torch::optim::OptimizerOptions;

// Shared by an optimizer and the handle notified of its destruction, which may
// happen on another thread.
class DestructionNotice {
 public:
  explicit DestructionNotice(std::function<void()> on_destruction)
      : on_destruction_(std::move(on_destruction)) {}

  void send() {
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
      std::shared_ptr<DestructionNotice> notice)
      : Options(options),
        before_(std::move(before)),
        notice_(std::move(notice)) {}
  WatchedOptions(const WatchedOptions&) = delete;
  WatchedOptions& operator=(const WatchedOptions&) = delete;
  ~WatchedOptions() override { notice_->send(); }

 private:
  // An optimizer that is prepared again keeps its earlier notice, and
  // references to its options stay valid.
  std::unique_ptr<OptimizerOptions> before_;
  std::shared_ptr<DestructionNotice> notice_;
};

// Gives access to the optimizer's protected options.
struct OpenOptimizer : torch::optim::Optimizer {
  static std::unique_ptr<OptimizerOptions>& defaults_of(
      torch::optim::Optimizer& optimizer) {
    return optimizer.*(&OpenOptimizer::defaults_);
  }
};

using OptionsPointer = std::unique_ptr<OptimizerOptions>;
using Notice = std::shared_ptr<DestructionNotice>;

template <class Options>
void watch_options(OptionsPointer& defaults, const Notice& notice) {
  const Options options = static_cast<const Options&>(*defaults);
  defaults = std::make_unique<WatchedOptions<Options>>(
      options, std::move(defaults), notice);
}

struct WatchableClass {
  const std::type_info& options;
  const std::type_info& watched_options;
  void (*watch)(OptionsPointer&, const Notice&);
};

template <class Options>
WatchableClass watchable() {
  return {
      typeid(Options),
      typeid(WatchedOptions<Options>),
      &watch_options<Options>};
}

// The row for the class of these options; null if it is unknown.
const WatchableClass* find_class(const OptionsPointer& options) {
  static const std::array classes{
      watchable<torch::optim::SGDOptions>(),
      watchable<torch::optim::AdamOptions>(),
      watchable<torch::optim::AdamWOptions>(),
      watchable<torch::optim::AdagradOptions>(),
      watchable<torch::optim::RMSpropOptions>(),
      watchable<torch::optim::LBFGSOptions>(),
      watchable<optim::RateOptions>()};
  if (!options) return nullptr;
  const OptimizerOptions& given = *options;
  const std::type_info& type = typeid(given);
  const auto* const found =
      std::ranges::find_if(classes, [&](const WatchableClass& row) {
        return type == row.options || type == row.watched_options;
      });
  return found == classes.end() ? nullptr : found;
}

const OptionsPointer& defaults_of(const torch::optim::Optimizer& optimizer) {
  return OpenOptimizer::defaults_of(
      const_cast<torch::optim::Optimizer&>(optimizer));
}

}  // namespace

bool can_watch(const torch::optim::Optimizer& optimizer) {
  return find_class(defaults_of(optimizer)) != nullptr;
}

std::string name_of_options(const torch::optim::Optimizer& optimizer) {
  const OptionsPointer& options = defaults_of(optimizer);
  if (!options) return "missing";
  const OptimizerOptions& found = *options;
  return c10::demangle(typeid(found).name());
}

std::shared_ptr<void> watch_optimizer(
    torch::optim::Optimizer& optimizer,
    std::function<void()> on_destruction) {
  OptionsPointer& defaults = OpenOptimizer::defaults_of(optimizer);
  const WatchableClass* const known = find_class(defaults);
  if (known == nullptr) return nullptr;
  const auto notice =
      std::make_shared<DestructionNotice>(std::move(on_destruction));
  known->watch(defaults, notice);
  return {notice.get(), [notice](void*) { notice->stop(); }};
}

}  // namespace accelerate::detail
