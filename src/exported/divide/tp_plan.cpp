#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accelerate/error.h>
#include <accelerate/exported_model.h>

#include "base/text/text.h"

namespace accelerate {

namespace {

struct NamedStyle {
  std::string_view name;
  /// Unset: the layer stays whole.
  std::optional<ParallelStyle> style;
};

std::optional<NamedStyle> style_named(std::string_view name) {
  const NamedStyle styles[] = {
      {"colwise", ColwiseParallel{}},
      {"colwise_gather_output", ColwiseParallel{.output_layouts = Replicate{}}},
      {"colwise_rep", ColwiseParallel{.output_layouts = Replicate{}}},
      {"embedding_colwise", ColwiseParallel{.output_layouts = Replicate{}}},
      {"embedding_rowwise", RowwiseParallel{}},
      {"replicate", std::nullopt},
      {"replicated_with_grad_allreduce", SequenceParallel{}},
      {"rowwise", RowwiseParallel{}},
      {"rowwise_rep", RowwiseParallel{.input_layouts = Replicate{}}},
      {"rowwise_split_input", RowwiseParallel{.input_layouts = Replicate{}}},
      {"sequence_parallel", SequenceParallel{}},
  };
  for (const NamedStyle& each : styles) {
    if (each.name == name) return each;
  }
  return std::nullopt;
}

}  // namespace

ParallelizePlan parse_tp_plan(
    const std::vector<std::pair<std::string, std::string>>& tp_plan) {
  ParallelizePlan plan;
  std::vector<std::string> unknown;
  for (const auto& [pattern, name] : tp_plan) {
    const auto found = style_named(name);
    if (!found) {
      unknown.push_back(detail::format(
          "\"{}\" of \"{}\"",
          detail::printable(name),
          detail::printable(pattern)));
    } else if (found->style) {
      plan.emplace_back(pattern, *found->style);
    }
  }
  if (unknown.empty()) return plan;
  throw ConfigError(detail::format(
      "[exported] the styles of a tp_plan must be colwise, "
      "colwise_gather_output, rowwise, rowwise_split_input, "
      "embedding_rowwise, embedding_colwise, sequence_parallel, "
      "replicated_with_grad_allreduce or replicate, but are {}; leave these "
      "layers out of the plan, so that every rank has them whole",
      detail::join(unknown, ", ")));
}

}  // namespace accelerate
