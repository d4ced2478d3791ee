#include "exported/graph/input_sizes.h"

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/exported/describe.h"

namespace accelerate::detail {

InputSizes::InputSizes(const ExportedProgram& program) {
  std::map<std::string, int> known;
  for (const ExportedInputTensor& tensor : program.input_tensors) {
    Input input{tensor.input, program.inputs[tensor.input].name, {}};
    for (const ExportedSize& size : tensor.sizes) {
      Dimension dimension;
      if (size.number) {
        dimension.range = {*size.number, *size.number};
      } else {
        dimension.symbol = symbol_of(size.expression, program, known);
        if (dimension.symbol >= 0) dimension.range = ranges_[dimension.symbol];
      }
      input.dimensions.push_back(dimension);
    }
    inputs_.push_back(std::move(input));
  }
}

int InputSizes::symbol_of(
    const std::string& expression,
    const ExportedProgram& program,
    std::map<std::string, int>& known) {
  const std::string name = symbol_in(expression);
  if (name.empty()) return -1;
  const auto [place, is_new] =
      known.emplace(name, static_cast<int>(ranges_.size()));
  if (!is_new) return place->second;
  const auto found = program.ranges.find(name);
  ranges_.push_back(
      found == program.ranges.end() ? ExportedRange{} : found->second);
  return place->second;
}

void InputSizes::check(const std::vector<c10::IValue>& inputs) const {
  constexpr std::int64_t kUnknown = -1;
  std::vector<std::int64_t> known(ranges_.size(), kUnknown);
  for (const Input& input : inputs_) {
    const c10::IValue& value = inputs[input.place];
    if (!value.isTensor()) {
      throw ConfigError(format(
          "[exported] input '{}' must be a tensor, but is a number",
          printable(input.name)));
    }
    const auto sizes = value.toTensor().sizes();
    if (sizes.size() != input.dimensions.size()) {
      throw ConfigError(format(
          "[exported] input '{}' must have {} dimensions, but has {}",
          printable(input.name),
          input.dimensions.size(),
          sizes.size()));
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Dimension& dimension = input.dimensions[i];
      if (sizes[i] < dimension.range.min || sizes[i] > dimension.range.max) {
        throw ConfigError(format(
            "[exported] dimension {} of input '{}' must be {}, for which the "
            "model was exported, but is {}",
            i,
            printable(input.name),
            range_text(dimension.range),
            sizes[i]));
      }
      if (dimension.symbol < 0) continue;
      std::int64_t& first = known[dimension.symbol];
      if (first == kUnknown) first = sizes[i];
      if (first != sizes[i]) fail_as_unequal(inputs, dimension.symbol);
    }
  }
}

void InputSizes::fail_as_unequal(
    const std::vector<c10::IValue>& inputs,
    int symbol) const {
  std::vector<std::string> sizes;
  for (const Input& input : inputs_) {
    for (std::size_t i = 0; i < input.dimensions.size(); ++i) {
      if (input.dimensions[i].symbol != symbol) continue;
      const at::Tensor& tensor = inputs[input.place].toTensor();
      if (static_cast<std::size_t>(tensor.dim()) <= i) continue;
      sizes.push_back(format(
          "dimension {} of '{}' is {}",
          i,
          printable(input.name),
          tensor.size(static_cast<std::int64_t>(i))));
    }
  }
  throw ConfigError(format(
      "[exported] the sizes of inputs must be equal where the model was "
      "exported with one name for them, but {}",
      join(sizes, ", ")));
}

}  // namespace accelerate::detail
