#include "format/exported/describe.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kOperators = "torch.ops.";

void count_operators(
    const ExportedGraph& graph,
    std::map<std::string, std::size_t>& counts) {
  for (const ExportedNode& node : graph.nodes) {
    const std::string_view target = node.target;
    ++counts[std::string(
        target.starts_with(kOperators) ? target.substr(kOperators.size())
                                       : target)];
    for (const ExportedNode::Input& input : node.inputs) {
      using SubGraph = std::shared_ptr<const ExportedGraph>;
      if (const auto* sub = std::get_if<SubGraph>(&input.argument.value)) {
        count_operators(**sub, counts);
      }
    }
  }
}

std::string size_text(
    const ExportedSize& size,
    const ExportedProgram& program) {
  if (size.number) return std::to_string(*size.number);
  const std::string symbol = symbol_in(size.expression);
  const auto found = program.ranges.find(symbol);
  if (symbol.empty()) return "computed";
  return range_text(
      found == program.ranges.end() ? ExportedRange{} : found->second);
}

void describe_arguments(
    const ExportedProgram& program,
    ExportedDescription& description) {
  std::map<std::size_t, ExportedDescription::Input> tensors;
  for (const ExportedInputTensor& tensor : program.input_tensors) {
    auto& input = tensors[tensor.input];
    input.dtype = name_of(tensor.dtype);
    for (const ExportedSize& size : tensor.sizes) {
      input.sizes.push_back(size_text(size, program));
    }
  }
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    if (program.inputs[i].kind != ExportedInput::Kind::user) continue;
    const auto found = tensors.find(i);
    auto input = found == tensors.end()
        ? ExportedDescription::Input{"", "size", {}}
        : std::move(found->second);
    input.name = program.inputs[i].name;
    description.inputs.push_back(std::move(input));
  }
  for (const ExportedOutput& output : program.outputs) {
    if (output.buffer.empty()) description.outputs.push_back(output.name);
  }
}

void describe_weights(
    const ExportedTensors& weights,
    ExportedDescription& description) {
  std::set<std::tuple<std::string, std::int64_t>> counted;
  for (const auto& [name, tensor] : weights) {
    description.has_weights = description.has_weights || tensor.bytes;
    if (!tensor.is_parameter ||
        !counted.emplace(tensor.file, tensor.offset).second) {
      continue;
    }
    std::int64_t count = 1;
    for (const std::int64_t size : tensor.sizes) count *= size;
    if (__builtin_add_overflow(
            description.num_parameters, count, &description.num_parameters)) {
      description.num_parameters = std::numeric_limits<std::int64_t>::max();
    }
  }
}

}  // namespace

std::string symbol_in(const std::string& expression) {
  constexpr std::string_view kBegin = "Symbol('";
  if (!expression.starts_with(kBegin)) return {};
  const std::size_t end = expression.find('\'', kBegin.size());
  // A symbol's assumptions follow; an operator's other operand would follow the
  // parenthesis.
  if (end == std::string::npos || expression.find(')') != expression.size() - 1)
    return {};
  return expression.substr(kBegin.size(), end - kBegin.size());
}

std::string range_text(const ExportedRange& range) {
  if (range.min == range.max) return std::to_string(range.min);
  const bool has_min = range.min > 0;
  if (range.max == std::numeric_limits<std::int64_t>::max()) {
    return has_min ? format("{} or more", range.min) : "any size";
  }
  return format("{} to {}", has_min ? range.min : 0, range.max);
}

ExportedDescription describe_exported(
    const ExportedArchive& archive,
    const std::string& model) {
  const ExportedProgram program = archive.program(model);
  ExportedDescription description;
  description.torch_version = program.torch_version;
  description.unsupported = program.unsupported;
  describe_arguments(program, description);
  count_operators(program.graph, description.operators);
  describe_weights(archive.weights(model), description);
  std::map<std::string, std::string> classes = program.classes;
  if (const auto facts = archive.facts()) {
    description.autocast = facts->autocast;
    for (const auto& [name, type] : facts->modules) classes[name] = type;
  }
  for (const auto& [name, type] : classes) ++description.classes[type];
  if (const auto evaluation = archive.evaluation()) {
    description.has_evaluation = true;
    description.unsupported.insert(
        description.unsupported.end(),
        evaluation->unsupported.begin(),
        evaluation->unsupported.end());
  }
  return description;
}

}  // namespace accelerate::detail
