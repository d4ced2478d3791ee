#include "planning/layout/layout_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"
#include "planning/layout/model_costs.h"

namespace accelerate {

namespace detail {

namespace {

constexpr std::size_t kLeastWidth = 61;

// Formats about three digits: "1.25", "31", "0.05".
std::string digits(double number) {
  int decimals = 2;
  if (std::abs(number) >= 100)
    decimals = 0;
  else if (std::abs(number) >= 10)
    decimals = 1;
  const double scale = std::pow(10.0, decimals);
  const auto rounded = static_cast<long long>(std::llround(number * scale));
  if (decimals == 0) return std::to_string(rounded);
  const auto base = static_cast<long long>(scale);
  std::string fraction = std::to_string(std::abs(rounded % base));
  fraction.insert(0, static_cast<std::size_t>(decimals) - fraction.size(), '0');
  const std::string sign = rounded < 0 && rounded / base == 0 ? "-" : "";
  return format("{}{}.{}", sign, rounded / base, fraction);
}

std::string thousands(double number) {
  constexpr std::pair<double, const char*> kUnits[] = {
      {1e12, " T"}, {1e9, " B"}, {1e6, " M"}, {1e3, " k"}};
  for (const auto& [unit, name] : kUnits) {
    if (number >= unit) return digits(number / unit) + name;
  }
  return digits(number);
}

std::string percent(double share) {
  return format("{} %", static_cast<long long>(std::llround(100 * share)));
}

std::string bytes_text(std::uint64_t bytes) {
  return format_size(static_cast<double>(bytes));
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

// The parts of a step, by name.
std::map<std::string, double> parts_of(const LayoutTimes& times) {
  std::map<std::string, double> parts = times.exposed;
  parts["computing"] = times.computing;
  parts["optimizer"] = times.optimizer;
  parts["bubble"] = times.bubble;
  parts["disk"] = times.disk;
  return parts;
}

// The parts of the step in which the layout is slower than the best.
std::string why_slower(const PlannedLayout& best, const PlannedLayout& other) {
  std::vector<std::pair<double, std::string>> more;
  const auto ours = parts_of(best.times);
  for (const auto& [name, seconds] : parts_of(other.times)) {
    const auto found = ours.find(name);
    const double difference =
        seconds - (found == ours.end() ? 0 : found->second);
    if (difference > 0.005 * best.times.step_seconds)
      more.emplace_back(difference, name);
  }
  std::sort(more.rbegin(), more.rend());
  if (more.size() > 2) more.resize(2);
  std::vector<std::string> texts;
  for (const auto& [seconds, name] : more)
    texts.push_back(format("{} +{}", name, seconds_text(seconds)));
  return texts.empty() ? "about as fast" : join(texts, ", ");
}

std::string why_too_large(
    const PlannedLayout& other,
    const LayoutPlanOptions& options) {
  const LayoutMemory& memory = other.memory;
  const std::pair<std::uint64_t, const char*> parts[] = {
      {memory.weights, "weights"},
      {memory.gradients, "gradients"},
      {memory.optimizer_state, "optimizer state"},
      {memory.gathered, "gathered parameters"},
      {memory.activations, "activations"}};
  const auto* const most = std::ranges::max_element(
      parts, [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::uint64_t usable = usable_bytes(options);
  return format(
      "needs {} more; {} of {}",
      bytes_text(memory.total() - std::min(usable, memory.total())),
      most->second,
      bytes_text(most->first));
}

// Layouts of one family use the same axes and the same sharding.
std::string family_of(const TrainingLayout& layout) {
  std::string family;
  const auto add = [&](const char* name, int degree) {
    if (degree > 1) family += name;
  };
  add("replicate", layout.replicate);
  add("expert", layout.expert);
  add("context", layout.context);
  add("tensor", layout.tensor);
  add("pipeline", layout.pipeline);
  if (layout.on_disk) family += "disk";
  return family + std::to_string(static_cast<int>(layout.sharding));
}

// The best layout of each family, then the next best ones, in their order.
std::vector<const PlannedLayout*> variety(
    const std::vector<PlannedLayout>& layouts,
    std::size_t skipped,
    std::size_t count) {
  std::vector<const PlannedLayout*> shown;
  std::set<std::string> families;
  for (std::size_t i = 0; i < layouts.size() && shown.size() < count; ++i) {
    const bool is_new = families.insert(family_of(layouts[i].layout)).second;
    if (i >= skipped && is_new) shown.push_back(&layouts[i]);
  }
  for (std::size_t i = skipped; i < layouts.size() && shown.size() < count;
       ++i) {
    if (std::ranges::find(shown, &layouts[i]) == shown.end())
      shown.push_back(&layouts[i]);
  }
  std::ranges::sort(shown);
  return shown;
}

std::string heading(
    const TransformerShape& shape,
    const LayoutPlanOptions& options) {
  std::string text = format(
      "A transformer of {} parameters",
      thousands(static_cast<double>(shape.num_parameters())));
  if (shape.num_experts > 0) {
    text += format(
        ", {} per token",
        thousands(static_cast<double>(shape.num_active_parameters())));
  }
  return text +
      format("; {} samples of {} tokens per step, precision {}, {}\n{} ranks, "
             "{} on a node, {} each ({} usable)\n",
             samples_of_step(options),
             options.sequence_length,
             mixed_precision_of(options.precision),
             options.optimizer,
             options.num_ranks,
             options.cluster->ranks_per_node,
             bytes_text(options.cluster->memory_bytes),
             bytes_text(usable_bytes(options)));
}

std::string memory_text(const LayoutMemory& memory) {
  std::string text = format(
      "{}: weights {}, gradients {}, optimizer state {}, gathered {}, "
      "activations {}",
      bytes_text(memory.total()),
      bytes_text(memory.weights),
      bytes_text(memory.gradients),
      bytes_text(memory.optimizer_state),
      bytes_text(memory.gathered),
      bytes_text(memory.activations));
  if (memory.on_disk > 0)
    text += format("\n  disk    {} per rank", bytes_text(memory.on_disk));
  return text;
}

std::string best_text(
    const TransformerShape& shape,
    const LayoutPlanOptions& options,
    const PlannedLayout& best) {
  const double tokens = tokens_of_step(options);
  return format(
      "\nbest: {}\n  step    {}, {} tokens/s, {} of the speed of products\n{}"
      "  memory  {}\n  binds   {}\n",
      best.layout.describe(),
      seconds_text(best.times.step_seconds),
      thousands(tokens / best.times.step_seconds),
      percent(utilization(shape, options, best.times)),
      times_text(best.times),
      memory_text(best.memory),
      best.binds);
}

}  // namespace

std::string seconds_text(double seconds) {
  if (seconds >= 1) return digits(seconds) + " s";
  if (seconds >= 1e-3) return digits(seconds * 1e3) + " ms";
  return digits(seconds * 1e6) + " us";
}

double utilization(
    const TransformerShape& shape,
    const LayoutPlanOptions& options,
    const LayoutTimes& times) {
  const ModelCosts model = model_costs(shape);
  double per_token = model.head_flops;
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    const LayerCosts& layer = model.layer(i);
    per_token += layer.attention_flops + layer.mlp_flops + layer.expert_flops +
        layer.attention_flops_per_position *
            static_cast<double>(options.sequence_length);
  }
  const double tokens = tokens_of_step(options);
  const int processors = options.cluster->measured.shared_processors > 0
      ? options.cluster->measured.shared_processors
      : options.num_ranks;
  return 3 * per_token * tokens / (product_speed(options) * processors) /
      times.step_seconds;
}

std::string times_text(const LayoutTimes& times) {
  std::vector<std::pair<double, std::string>> parts;
  for (const auto& [name, seconds] : parts_of(times)) {
    if (seconds > 0.0005 * times.step_seconds)
      parts.emplace_back(seconds, name);
  }
  std::sort(parts.rbegin(), parts.rend());
  std::string text;
  for (const auto& [seconds, name] : parts) {
    text += format(
        "          {} {} {}",
        padded(percent(seconds / times.step_seconds), 5),
        padded(name, 11),
        seconds_text(seconds));
    const auto travelling = times.travelling.find(name);
    if (travelling != times.travelling.end() &&
        travelling->second > 1.01 * seconds) {
      text += format(
          ", and {} behind computing",
          seconds_text(travelling->second - seconds));
    }
    text += "\n";
  }
  return text;
}

namespace {

// Layouts other than the best, one per line.
class TableOfOthers {
 public:
  void add(const PlannedLayout& other, std::string reason) {
    rows_.push_back({other.layout.describe(), &other, std::move(reason)});
    width_ = std::max(width_, rows_.back().name.size());
  }
  [[nodiscard]] std::string text(bool has_heading) const {
    std::string text;
    if (has_heading) text = line("others", "step", "memory", "why not");
    for (const Row& row : rows_)
      text += line(
          row.name,
          seconds_text(row.layout->times.step_seconds),
          bytes_text(row.layout->memory.total()),
          row.reason);
    return text;
  }

 private:
  struct Row {
    std::string name;
    const PlannedLayout* layout;
    std::string reason;
  };

  [[nodiscard]] std::string line(
      const std::string& name,
      const std::string& step,
      const std::string& memory,
      const std::string& reason) const {
    return padded(name, width_ + 1) + padded(step, 10) + padded(memory, 11) +
        reason + "\n";
  }

  std::vector<Row> rows_;
  std::size_t width_ = kLeastWidth;
};

}  // namespace

std::string explain_plan(
    const TransformerShape& shape,
    const LayoutPlanOptions& options,
    const std::vector<PlannedLayout>& fitting,
    const std::vector<PlannedLayout>& not_fitting,
    std::size_t num_considered,
    std::size_t max_layouts) {
  std::string text = heading(shape, options);
  TableOfOthers others;
  if (fitting.empty()) {
    text += "\nNothing fits. The smallest:\n";
  } else {
    text += best_text(shape, options, fitting.front()) + "\n";
    for (const PlannedLayout* other : variety(fitting, 1, max_layouts))
      others.add(*other, why_slower(fitting.front(), *other));
  }
  for (const PlannedLayout* other :
       variety(not_fitting, 0, fitting.empty() ? max_layouts : 3))
    others.add(*other, why_too_large(*other, options));
  text += others.text(/*has_heading=*/!fitting.empty());
  return text +
      format("\n{} layouts were looked at, {} of them simulated. Which to use "
             "and why: docs/guides/planning.md\n",
             num_considered,
             fitting.size() + not_fitting.size());
}

}  // namespace detail

std::string TrainingLayout::describe() const {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, int degree) {
    if (degree > 1) parts.push_back(detail::format("{} {}", name, degree));
  };
  add("replicate", replicate);
  if (shard > 1) {
    const char* const what = sharding == LayoutSharding::optimizer ? "ZeRO-1"
        : sharding == LayoutSharding::gradients                    ? "ZeRO-2"
                                                : "parameters";
    parts.push_back(detail::format("shard {} ({})", shard, what));
  }
  add("expert", expert);
  add("context", context);
  add("tensor", tensor);
  if (pipeline > 1) {
    parts.push_back(
        detail::format("pipeline {} {}", pipeline, name_of(schedule)));
    if (num_chunks > 1) parts.back() += detail::format(" x {}", num_chunks);
  }
  if (parts.empty()) parts.emplace_back("1 rank");
  if (on_disk) parts.emplace_back("on disk");
  parts.push_back(
      detail::format("micro-batch {} x {}", micro_batch, num_micro_batches));
  if (recomputes) parts.emplace_back("recomputing");
  return detail::join(parts, ", ");
}

std::string scaling_table(
    const TransformerShape& shape,
    const LayoutPlanOptions& options,
    const std::vector<int>& num_ranks) {
  using detail::padded;
  std::string text = padded("ranks", 8) + padded("step", 10) +
      padded("tokens/s", 11) + padded("speed", 7) + padded("bubble", 8) +
      padded("memory", 11) + padded("binds", 12) + "layout\n";
  for (const int ranks : num_ranks) {
    LayoutPlanOptions own = options;
    own.num_ranks = ranks;
    text += padded(std::to_string(ranks), 8);
    try {
      const LayoutPlan plan = plan_layout(shape, own);
      if (plan.layouts().empty()) {
        text += detail::format(
            "nothing fits: the smallest needs {}\n",
            detail::bytes_text(plan.not_fitting().front().memory.total()));
        continue;
      }
      const PlannedLayout& best = plan.best();
      const double step = best.times.step_seconds;
      text += padded(detail::seconds_text(step), 10) +
          padded(detail::thousands(detail::tokens_of_step(own) / step), 11) +
          padded(detail::percent(detail::utilization(shape, own, best.times)),
                 7) +
          padded(detail::percent(best.times.bubble / step), 8) +
          padded(detail::bytes_text(best.memory.total()), 11) +
          padded(best.binds, 12) + best.layout.describe() + "\n";
    } catch (const ConfigError& error) {
      text += detail::format("{}\n", std::string_view(error.what()));
    }
  }
  return text;
}

}  // namespace accelerate
