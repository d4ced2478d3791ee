#include <accelerate/deepspeed_training.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>

#include <accelerate/error.h>
#include <accelerate/optimizers.h>

#include "base/text/text.h"
#include "engines/deepspeed/deepspeed_section.h"
#include "optim/made_from_engine.h"

namespace accelerate {

namespace {

using detail::format;
using Section = detail::DeepSpeedSectionReader;
template <class Base>
using Made = detail::FromDeepSpeed<Base>;

template <class Options>
Options adam_options(Section& section) {
  Options options(section.number("lr", 0.001));
  options.betas(section.pair("betas", {0.9, 0.999}));
  options.eps(section.number("eps", 1e-8));
  options.weight_decay(section.number("weight_decay", 0));
  options.amsgrad(section.truth("amsgrad", false));
  if (!section.truth("bias_correction", true)) {
    throw ConfigError(
        "[optim] optimizer.params.bias_correction of the DeepSpeed "
        "configuration is false, which Adam does not support here");
  }
  return options;
}

// The warm-up with which all of DeepSpeed's schedules begin.
struct DeepSpeedWarmup {
  double num_steps = 2;
  bool is_logarithmic = true;
  /// 0 for a schedule without an end.
  double total_num_steps = 0;

  /// The factor, which rises from 0 to 1 during the warm-up.
  [[nodiscard]] double rise(double step) const {
    return is_logarithmic ? std::log(step + 1) / std::log(num_steps)
                          : step / num_steps;
  }
  [[nodiscard]] double num_steps_after() const {
    return std::max(1.0, total_num_steps - num_steps);
  }
};

DeepSpeedWarmup read_warmup(Section& section, bool has_end) {
  DeepSpeedWarmup warmup;
  warmup.num_steps = std::max(2.0, section.number("warmup_num_steps", 1000));
  const std::string shape = section.text("warmup_type", "log");
  if (shape != "log" && shape != "linear") {
    throw ConfigError(format(
        "[optim] scheduler.params.warmup_type of the DeepSpeed configuration "
        "must be log or linear, but is \"{}\"",
        shape));
  }
  warmup.is_logarithmic = shape == "log";
  if (!has_end) return warmup;
  warmup.total_num_steps = section.number("total_num_steps", 0);
  if (warmup.total_num_steps <= 0) {
    throw ConfigError(format(
        "[optim] scheduler {} of the DeepSpeed configuration needs "
        "total_num_steps, which is {}",
        section.type(),
        warmup.total_num_steps));
  }
  return warmup;
}

// WarmupCosineLR: ratios of the optimizer's learning rate.
std::function<double(std::int64_t)>
cosine_ratio(const DeepSpeedWarmup& warmup, double first, double last) {
  return [=](std::int64_t number) -> double {
    if (number == 0) return first;
    const auto step = static_cast<double>(number - 1);
    if (step < warmup.num_steps) return first + (1 - first) * warmup.rise(step);
    const double progress = std::clamp(
        (step - warmup.num_steps + 1) / warmup.num_steps_after(), 0.0, 1.0);
    return last + (1 - last) * (1 + std::cos(std::numbers::pi * progress)) / 2;
  };
}

// WarmupLR and WarmupDecayLR: from 0 to 1, and back to 0 if there is an end.
std::function<double(std::int64_t)> linear_share(
    const DeepSpeedWarmup& warmup) {
  return [=](std::int64_t number) -> double {
    if (number == 0) return 0;
    const auto step = static_cast<double>(number - 1);
    if (step < warmup.num_steps) return warmup.rise(step);
    if (warmup.total_num_steps == 0) return 1;
    return std::max(
        0.0, (warmup.total_num_steps - step) / warmup.num_steps_after());
  };
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> optimizer_from_deepspeed(
    const std::string& config,
    std::vector<at::Tensor> parameters,
    const DummyOptim& automatic) {
  Section section(
      config,
      "optimizer",
      {{"lr", automatic.lr}, {"weight_decay", automatic.weight_decay}});
  section.pass_over("torch_adam");
  const std::string& type = section.type();
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (type == "Adam" || type == "AdamW") {
    const bool decouples =
        type == "AdamW" || section.truth("adam_w_mode", true);
    if (decouples) {
      auto options = adam_options<torch::optim::AdamWOptions>(section);
      section.require_all_known();
      optimizer =
          std::make_unique<Made<optim::AdamW>>(std::move(parameters), options);
    } else {
      auto options = adam_options<torch::optim::AdamOptions>(section);
      section.require_all_known();
      optimizer =
          std::make_unique<Made<optim::Adam>>(std::move(parameters), options);
    }
  } else if (type == "SGD") {
    torch::optim::SGDOptions options(section.number("lr", 0.001));
    options.momentum(section.number("momentum", 0));
    options.dampening(section.number("dampening", 0));
    options.weight_decay(section.number("weight_decay", 0));
    options.nesterov(section.truth("nesterov", false));
    section.require_all_known();
    optimizer =
        std::make_unique<Made<optim::SGD>>(std::move(parameters), options);
  } else if (type == "Adagrad") {
    torch::optim::AdagradOptions options(section.number("lr", 0.01));
    options.eps(section.number("eps", 1e-10));
    options.weight_decay(section.number("weight_decay", 0));
    section.require_all_known();
    optimizer =
        std::make_unique<Made<optim::Adagrad>>(std::move(parameters), options);
  } else {
    section.refuse_type("Adam, AdamW, SGD, Adagrad");
  }
  return optimizer;
}

std::unique_ptr<optim::LRScheduler> scheduler_from_deepspeed(
    const std::string& config,
    torch::optim::Optimizer& optimizer,
    const DummyScheduler& automatic) {
  const double base = optimizer.param_groups().empty()
      ? 0
      : optimizer.param_groups()[0].options().get_lr();
  Section section(
      config,
      "scheduler",
      {{"warmup_min_lr", 0},
       {"warmup_max_lr", base},
       {"warmup_num_steps", static_cast<double>(automatic.warmup_num_steps)},
       {"total_num_steps", static_cast<double>(automatic.total_num_steps)}});
  const std::string& type = section.type();
  const bool is_cosine = type == "WarmupCosineLR";
  const bool has_end = is_cosine || type == "WarmupDecayLR";
  if (!has_end && type != "WarmupLR")
    section.refuse_type("WarmupLR, WarmupDecayLR, WarmupCosineLR");
  const DeepSpeedWarmup warmup = read_warmup(section, has_end);
  if (is_cosine) {
    const double first = section.number("warmup_min_ratio", 0);
    const double last = section.number("cos_min_ratio", 0.0001);
    section.require_all_known();
    return std::make_unique<Made<optim::LambdaLR>>(
        optimizer, cosine_ratio(warmup, first, last));
  }
  const double least = section.number("warmup_min_lr", 0);
  const double most = section.number("warmup_max_lr", 0.001);
  section.require_all_known();
  if (base == 0) {
    throw ConfigError(
        "[optim] the optimizer's learning rate is 0, which no schedule can "
        "scale; set it");
  }
  return std::make_unique<Made<optim::LambdaLR>>(
      optimizer,
      [=, share = linear_share(warmup)](std::int64_t number) -> double {
        return (least + (most - least) * share(number)) / base;
      });
}

}  // namespace accelerate
