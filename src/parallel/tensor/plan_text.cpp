#include <accelerate/tensor_parallel.h>

#include <string_view>

#include "base/text/text.h"

namespace accelerate {

namespace {

using detail::format;

std::string placement_text(const TensorPlacement& placement) {
  const auto* const shard = std::get_if<accelerate::Shard>(&placement);
  return shard == nullptr ? "Replicate" : format("Shard({})", shard->dim);
}

// Formats a style's name and its non-default layouts.
class StyleText {
 public:
  std::string operator()(const ColwiseParallel& style) const {
    return "ColwiseParallel" +
        unusual("input_layouts", style.input_layouts, Replicate{}) +
        unusual("output_layouts", style.output_layouts, Shard{-1});
  }
  std::string operator()(const RowwiseParallel& style) const {
    return "RowwiseParallel" +
        unusual("input_layouts", style.input_layouts, Shard{-1}) +
        unusual("output_layouts", style.output_layouts, Replicate{});
  }
  std::string operator()(const SequenceParallel&) const {
    return "SequenceParallel";
  }
  std::string operator()(const PrepareModuleInput& style) const {
    return format(
        "PrepareModuleInput, {} to {}",
        placement_text(style.input_layouts),
        placement_text(style.desired_input_layouts));
  }
  std::string operator()(const PrepareModuleOutput& style) const {
    return format(
        "PrepareModuleOutput, {} to {}",
        placement_text(style.output_layouts),
        placement_text(style.desired_output_layouts));
  }
  std::string operator()(const PrepareModuleInputOutput& style) const {
    return format(
        "PrepareModuleInputOutput, {} to {}, then {} to {}",
        placement_text(style.input_layouts),
        placement_text(style.desired_input_layouts),
        placement_text(style.output_layouts),
        placement_text(style.desired_output_layouts));
  }

 private:
  static std::string unusual(
      std::string_view name,
      const TensorPlacement& placement,
      const TensorPlacement& usual) {
    return placement == usual
        ? std::string()
        : format(", {} {}", name, placement_text(placement));
  }
};

std::string style_text(const ParallelStyle& style) {
  return std::visit(StyleText(), style);
}

}  // namespace

std::string InferredPlan::explain() const {
  std::string text;
  for (const PlanDecision& decision : decisions) {
    text += format(
        "{}: {} ({})\n",
        decision.module.empty() ? "(model)" : decision.module,
        decision.style ? style_text(*decision.style) : std::string("whole"),
        decision.why);
  }
  return text;
}

}  // namespace accelerate
