#include "adapters/target_layers.h"

#include <algorithm>
#include <map>
#include <string>

#include <accelerate/error.h>

#include "adapters/expression.h"
#include "base/text/text.h"
#include "gate/linear_weight.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kMostNames = 10;

std::string some_of(const std::vector<std::string>& names) {
  const std::size_t count = std::min(names.size(), kMostNames);
  std::string text = join(
      std::vector<std::string>(
          names.begin(), names.begin() + static_cast<std::ptrdiff_t>(count)),
      ", ");
  if (count < names.size())
    text += format(" and {} more", names.size() - count);
  return text.empty() ? "none" : text;
}

bool is_all_linear(const ModulePattern& pattern) {
  return to_lower(pattern.expression()) == "all-linear";
}

// Whether "all-linear" means a module.
bool is_linear(const NamedModule& each) {
  return linear_class_of(*each.module) != LinearClass::none;
}

// A head, which "all-linear" leaves out.
bool is_head(const std::string& name, const AdapterOptions& options) {
  const std::string last = name.substr(name.rfind('.') + 1);
  if (last == "lm_head") return true;
  return options.task_type == "SEQ_CLS" &&
      (last == "score" || last == "classifier");
}

bool is_saved(const std::string& name, const AdapterOptions& options) {
  return std::ranges::any_of(
      options.modules_to_save,
      [&](const std::string& end) { return name.ends_with(end); });
}

// Whether the module is part of a saved one.
bool is_in_saved(const std::string& name, const AdapterOptions& options) {
  for (std::string part = name; !part.empty(); part = module_part(part))
    if (is_saved(part, options)) return true;
  return false;
}

// Whether the layer's number is one of those to transform.
bool has_wanted_number(const std::string& name, const AdapterOptions& options) {
  if (options.layers_to_transform.empty()) return true;
  std::optional<std::string> number;
  if (options.layers_pattern.empty()) {
    number = group_in(name, R"(.*?\.[^.]*\.(\d+)\.)");
  }
  for (const std::string& pattern : options.layers_pattern) {
    if (!number)
      number = group_in(name, "(?:|.*?\\.)(?:" + pattern + ")\\.(\\d+)\\.");
  }
  const auto value = number ? parse_int(*number) : std::nullopt;
  return value &&
      std::ranges::find(options.layers_to_transform, *value) !=
      options.layers_to_transform.end();
}

bool is_target(const NamedModule& each, const AdapterOptions& options) {
  const ModulePattern& wanted = options.target_modules;
  if (each.name.empty() && !wanted.matches("")) return false;
  if (options.exclude_modules.matches(each.name) ||
      is_in_saved(each.name, options)) {
    return false;
  }
  if (is_all_linear(wanted))
    return is_linear(each) && !is_head(each.name, options);
  if (!wanted.matches(each.name)) return false;
  const bool is_exact =
      std::ranges::find(wanted.names(), each.name) != wanted.names().end();
  return !wanted.expression().empty() || is_exact ||
      has_wanted_number(each.name, options);
}

std::string kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::embedding:
      return "embedding";
    case LayerKind::convolution:
      return "convolution";
    default:
      return "linear layer";
  }
}

// Complains about layers whose weight is that of another layer: which of the
// two computes cannot be told from the operator.
void check_ties(
    const std::vector<NamedModule>& modules,
    const AdapterOptions& options,
    const std::vector<TargetLayer>& targets,
    std::vector<std::string>& complaints) {
  std::map<const c10::TensorImpl*, std::vector<const TargetLayer*>> by_weight;
  for (const TargetLayer& target : targets)
    by_weight[target.facts.weight.unsafeGetTensorImpl()].push_back(&target);
  for (const NamedModule& each : modules) {
    const auto facts = layer_facts(*each.module, options.fan_in_fan_out);
    if (!facts) continue;
    const auto found = by_weight.find(facts->weight.unsafeGetTensorImpl());
    if (found == by_weight.end()) continue;
    for (const TargetLayer* const target : found->second) {
      const bool is_itself = target->module.name == each.name;
      const bool is_target_too = std::ranges::any_of(
          found->second,
          [&](const auto* other) { return other->module.name == each.name; });
      if (is_itself || (facts->kind != target->facts.kind && !is_target_too))
        continue;
      complaints.push_back(format(
          "the weight of \"{}\" must not be shared with another {}, but is "
          "that of \"{}\" too (tied weights)",
          printable(target->module.name),
          is_target_too ? "layer that gets an adapter"
                        : kind_name(target->facts.kind),
          printable(each.name)));
    }
  }
}

void check_layer(
    const TargetLayer& target,
    const AdapterOptions& options,
    std::vector<std::string>& complaints) {
  const std::int64_t rank = rank_for(options, target.module.name);
  const auto complain = [&](const std::string& what) {
    complaints.push_back(
        format("\"{}\" {}", printable(target.module.name), what));
  };
  if (rank < 1)
    complain(format("must have a rank of at least 1, but has {}", rank));
  if (rank % target.facts.groups != 0) {
    complain(format(
        "must have a rank that its {} groups divide, but has {}",
        target.facts.groups,
        rank));
  }
  if (!options.use_dora) return;
  if (target.facts.weight.is_meta())
    complain("must have values for use_dora, but is on the meta device");
  if (target.facts.groups > 1)
    complain("must not be a convolution of several groups with use_dora");
}

[[noreturn]] void refuse(const std::vector<std::string>& complaints) {
  throw ConfigError(
      "[adapters] the model cannot have these adapters: " +
      join(complaints, "; "));
}

std::vector<NamedModule> find_saved(
    const std::vector<NamedModule>& modules,
    const AdapterOptions& options,
    std::vector<std::string>& complaints) {
  std::vector<NamedModule> saved;
  for (const NamedModule& each : modules) {
    if (each.name.empty() || !is_saved(each.name, options) ||
        is_in_saved(module_part(each.name), options)) {
      continue;
    }
    saved.push_back(each);
    if (each.module->parameters().empty()) {
      complaints.push_back(format(
          "the module \"{}\" of modules_to_save must have "
          "parameters, but has none",
          printable(each.name)));
    }
    if (!each.module->buffers().empty()) {
      complaints.push_back(format(
          "the module \"{}\" of modules_to_save must have "
          "no buffers, but has some",
          printable(each.name)));
    }
  }
  for (const std::string& name : options.modules_to_save) {
    const bool is_found = std::ranges::any_of(
        saved,
        [&](const NamedModule& each) { return each.name.ends_with(name); });
    if (!is_found) {
      complaints.push_back(format(
          "modules_to_save must name modules of the model, but \"{}\" is none",
          printable(name)));
    }
  }
  return saved;
}

}  // namespace

void require_valid(const AdapterOptions& options) {
  std::vector<std::string> complaints;
  if (options.rank < 1)
    complaints.push_back(
        format("rank must be at least 1, but is {}", options.rank));
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    complaints.push_back(format(
        "dropout must be at least 0 and less than 1, but is {}",
        options.dropout));
  }
  if (options.target_modules.empty())
    complaints.emplace_back("target_modules must name layers, but is empty");
  if (!options.layers_to_transform.empty() &&
      !options.target_modules.expression().empty()) {
    complaints.emplace_back(
        "target_modules must be names if layers_to_transform is set, but is an "
        "expression");
  }
  if (options.layers_to_transform.empty() && !options.layers_pattern.empty()) {
    complaints.emplace_back(
        "layers_to_transform must be set if layers_pattern is, but is empty");
  }
  if (!complaints.empty())
    throw ConfigError("[adapters] " + join(complaints, "; "));
}

Targets find_targets(torch::nn::Module& model, const AdapterOptions& options) {
  const std::vector<NamedModule> modules = modules_without_adapters(model);
  Targets targets;
  std::vector<std::string> complaints, linear;
  for (const NamedModule& each : modules) {
    if (is_linear(each)) linear.push_back(each.name);
    if (!is_target(each, options)) continue;
    const auto facts = layer_facts(*each.module, options.fan_in_fan_out);
    if (facts) {
      targets.layers.push_back({each, *facts});
      check_layer(targets.layers.back(), options, complaints);
      continue;
    }
    const bool has_weight = own_parameter(*each.module, "weight").defined();
    complaints.push_back(format(
        "\"{}\" must be a linear, embedding or "
        "convolution layer{}, but is a {}",
        printable(each.name),
        has_weight ? ""
                   : " with a weight of its own (tied weights are those of "
                     "the first module)",
        printable(short_class_name(*each.module))));
  }
  targets.saved = find_saved(modules, options, complaints);
  check_ties(modules, options, targets.layers, complaints);
  if (!complaints.empty()) refuse(complaints);
  if (targets.layers.empty()) {
    throw ConfigError(format(
        "[adapters] target_modules must match layers of the model, but matches "
        "none; its linear layers are: {}",
        printable(some_of(linear))));
  }
  return targets;
}

}  // namespace accelerate::detail
