#include "engines/megatron_lm/megatron_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "engines/megatron_lm/megatron_args.h"
#include "engines/megatron_lm/megatron_lm.h"

namespace accelerate::detail {

namespace {

// Half a period of a cosine, from 1 to 0.
double cosine(double ratio) {
  return 0.5 * (std::cos(std::numbers::pi * ratio) + 1);
}

double wsd_coefficient(std::string_view style, double ratio) {
  if (style == "linear") return 1 - ratio;
  if (style == "cosine") return cosine(ratio);
  if (style == "minus_sqrt") return 1 - std::sqrt(ratio);
  return 2 * std::pow(0.5, ratio) - 1;
}

class ScheduleReader {
 public:
  ScheduleReader(
      const MegatronArguments& given,
      const MegatronScheduleLengths& lengths)
      : options_(check_megatron_lm(given)),
        more_(given.schedule),
        lengths_(lengths) {}

  MegatronSchedule read() {
    found_.decay_style = *options_.lr_decay_style;
    found_.warmup_init = more_.lr_warmup_init.value_or(0);
    found_.min_lr = *options_.min_lr;
    // As in Accelerate, the program's iterations take precedence over samples.
    const std::int64_t iters =
        options_.train_iters.value_or(lengths_.train_iters);
    const bool counts_samples = iters == 0 && !options_.lr_decay_iters &&
        (options_.train_samples || options_.lr_decay_samples);
    counts_samples ? read_samples() : read_iterations(iters);
    read_weight_decay();
    if (complaints_.empty()) check_lengths();
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return std::move(found_);
  }

 private:
  static constexpr std::string_view kSamples =
      "counts samples, but the schedule counts iterations, since train_iters, "
      "lr_decay_iters or total_num_steps is set; leave one of them out";
  static constexpr std::string_view kIterations =
      "counts iterations, but the schedule counts samples; leave it out, or "
      "set train_iters";

  // Refuses a length that does not belong to this schedule; 0 asks for nothing.
  void refuse(
      const std::optional<std::int64_t>& length,
      std::string_view name,
      std::string_view why) {
    if (length.value_or(0) != 0) complain(format("{} {}", name, why));
  }

  void read_iterations(std::int64_t iters) {
    const double unit = static_cast<double>(
        std::max<std::int64_t>(1, lengths_.global_batch_size));
    found_.increment = unit;
    found_.decay =
        unit * static_cast<double>(options_.lr_decay_iters.value_or(iters));
    found_.weight_decay_length = unit * static_cast<double>(iters);
    refuse(options_.train_samples, "train_samples", kSamples);
    refuse(options_.lr_decay_samples, "lr_decay_samples", kSamples);
    refuse(options_.lr_warmup_samples, "lr_warmup_samples", kSamples);
    refuse(more_.lr_wsd_decay_samples, "lr_wsd_decay_samples", kSamples);
    read_warmup(
        unit *
        static_cast<double>(
            options_.lr_warmup_iters.value_or(lengths_.warmup_iters)));
    read_wsd(more_.lr_wsd_decay_iters, "lr_wsd_decay_iters", unit);
  }

  void read_samples() {
    if (lengths_.global_batch_size < 1) {
      complain(
          "train_samples counts samples, but global_batch_size is not set; set "
          "it, or train_iters");
    }
    refuse(options_.lr_warmup_iters, "lr_warmup_iters", kIterations);
    refuse(more_.lr_wsd_decay_iters, "lr_wsd_decay_iters", kIterations);
    found_.increment = static_cast<double>(lengths_.global_batch_size);
    const std::int64_t samples = options_.train_samples.value_or(0);
    found_.decay =
        static_cast<double>(options_.lr_decay_samples.value_or(samples));
    found_.weight_decay_length = static_cast<double>(samples);
    read_warmup(static_cast<double>(options_.lr_warmup_samples.value_or(0)));
    read_wsd(more_.lr_wsd_decay_samples, "lr_wsd_decay_samples", 1);
  }

  void read_warmup(double length) {
    found_.warmup = length;
    if (!options_.lr_warmup_fraction) return;
    if (length > 0) {
      complain(
          "lr_warmup_fraction is set beside another length of the warm-up; "
          "leave one of them out");
    }
    found_.warmup = *options_.lr_warmup_fraction * found_.decay;
  }

  void read_wsd(
      const std::optional<std::int64_t>& length,
      std::string_view name,
      double unit) {
    if (found_.decay_style != "WSD") {
      const std::string_view instead =
          "belongs to lr_decay_style WSD; set that, or leave it out";
      refuse(more_.lr_wsd_decay_iters, "lr_wsd_decay_iters", instead);
      refuse(more_.lr_wsd_decay_samples, "lr_wsd_decay_samples", instead);
      if (more_.lr_wsd_decay_style)
        complain(format("lr_wsd_decay_style {}", instead));
      return;
    }
    if (length.value_or(0) < 1) {
      complain(format(
          "lr_decay_style WSD needs {} in other_megatron_args, of at least 1",
          name));
    }
    found_.wsd_decay = unit * static_cast<double>(length.value_or(0));
    found_.wsd_style = more_.lr_wsd_decay_style.value_or("exponential");
    constexpr std::array<std::string_view, 4> kStyles{
        "exponential", "linear", "cosine", "minus_sqrt"};
    if (std::ranges::find(kStyles, found_.wsd_style) == kStyles.end()) {
      complain(format(
          "lr_wsd_decay_style must be one of exponential, linear, cosine, "
          "minus_sqrt, but is \"{}\"",
          found_.wsd_style));
    }
  }

  void read_weight_decay() {
    found_.weight_decay_style = *options_.weight_decay_incr_style;
    const auto& start = options_.start_weight_decay;
    const auto& end = options_.end_weight_decay;
    if (found_.weight_decay_style == "constant") {
      if (start || end) {
        complain(
            "start_weight_decay and end_weight_decay describe a changing "
            "weight decay, but weight_decay_incr_style is constant; leave them "
            "out, or set it to linear or cosine");
      }
      return;
    }
    if (!start || !end) {
      complain(format(
          "weight_decay_incr_style {} needs start_weight_decay and "
          "end_weight_decay",
          found_.weight_decay_style));
      return;
    }
    if (*start < 0 || *end < *start) {
      complain(format(
          "weight decay must begin at 0 or more and must not fall, but goes "
          "from {} to {}",
          *start,
          *end));
    }
    if (!(found_.weight_decay_length > 0)) {
      complain(
          "weight decay changes over the training, whose length is unknown; "
          "set train_iters or total_num_steps");
    }
    found_.start_weight_decay = *start;
    found_.end_weight_decay = *end;
  }

  void check_lengths() {
    if (!(found_.decay > 0)) {
      complain(
          "the length of the schedule is unknown; set total_num_steps, "
          "train_iters or lr_decay_iters");
    } else if (!(found_.warmup < found_.decay)) {
      complain(format(
          "the warm-up must be shorter than the "
          "schedule, but takes {} of {} {}",
          found_.warmup,
          found_.decay,
          found_.increment > 1 ? "samples" : "iterations"));
    } else if (found_.wsd_decay > found_.decay) {
      complain(format(
          "the decay at the end of a WSD schedule takes {} of its {} {}",
          found_.wsd_decay,
          found_.decay,
          found_.increment > 1 ? "samples" : "iterations"));
    }
  }

  void complain(std::string_view text) {
    complaints_.push_back(format("[optim] Megatron-LM's schedule: {}", text));
  }

  MegatronLMOptions options_;
  MegatronScheduleArguments more_;
  MegatronScheduleLengths lengths_;
  MegatronSchedule found_;
  std::vector<std::string> complaints_;
};

}  // namespace

double MegatronSchedule::lr_at(std::int64_t step, double max_lr) const {
  const double at = increment * static_cast<double>(step);
  if (warmup > 0 && at <= warmup)
    return warmup_init + (max_lr - warmup_init) * at / warmup;
  if (decay_style == "constant") return max_lr;
  if (at > decay) return min_lr;
  if (decay_style == "inverse-square-root") {
    return std::max(
        min_lr,
        max_lr * std::sqrt(std::max(warmup, 1.0)) /
            std::sqrt(std::max(at, 1.0)));
  }
  const double ratio = (at - warmup) / (decay - warmup);
  double coefficient = 1;
  if (decay_style == "linear") {
    coefficient = 1 - ratio;
  } else if (decay_style == "cosine") {
    coefficient = cosine(ratio);
  } else if (at > decay - wsd_decay) {
    coefficient =
        wsd_coefficient(wsd_style, (at - (decay - wsd_decay)) / wsd_decay);
  }
  return min_lr + coefficient * (max_lr - min_lr);
}

std::optional<double> MegatronSchedule::weight_decay_at(
    std::int64_t step) const {
  if (!start_weight_decay) return std::nullopt;
  const double at = increment * static_cast<double>(step);
  if (at > weight_decay_length) return end_weight_decay;
  const double ratio = at / weight_decay_length;
  const double coefficient =
      weight_decay_style == "linear" ? ratio : cosine(1 - ratio);
  return *start_weight_decay +
      coefficient * (end_weight_decay - *start_weight_decay);
}

MegatronSchedule read_megatron_schedule(
    const MegatronLMOptions& options,
    const MegatronScheduleLengths& lengths) {
  return ScheduleReader(read_megatron_arguments(options), lengths).read();
}

}  // namespace accelerate::detail
