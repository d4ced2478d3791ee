#include "pipeline/exported_values.h"

#include <bit>
#include <cstdint>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "exported/load/loaded_program.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kLayer = "an exported program";

// "i8" for 8, "b1" for true, "f" with its bits for 0.5.
std::string number_text(const c10::IValue& number) {
  if (number.isBool()) return number.toBool() ? "b1" : "b0";
  if (number.isInt()) return "i" + std::to_string(number.toInt());
  if (number.isDouble()) {
    const auto bits = std::bit_cast<std::int64_t>(number.toDouble());
    return "f" + std::to_string(bits);
  }
  throw ConfigError(format(
      "[exported] values that one stage of a program passes to the next must "
      "be tensors and numbers, but one is a {}; split it elsewhere",
      number.tagKind()));
}

c10::IValue number_in(const std::string& text) {
  const std::int64_t value = std::stoll(text.substr(1));
  if (text[0] == 'b') return value != 0;
  if (text[0] == 'i') return value;
  return std::bit_cast<double>(value);
}

}  // namespace

// A tuple: first an entry whose key has the numbers, "place=number ...", then
// the tensors.
PipelineValue stage_value(const std::vector<c10::IValue>& values) {
  PipelineValue value;
  std::string numbers;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensor()) {
      value.tensors.push_back(values[i].toTensor());
      value.structure += value.tensors.back().defined() ? 't' : 'n';
    } else {
      numbers += format("{}={} ", i, number_text(values[i]));
    }
  }
  value.tensors.insert(value.tensors.begin(), at::Tensor());
  value.structure = "({" + std::to_string(numbers.size()) + ":" + numbers +
      "n}" + value.structure + ")";
  return value;
}

std::vector<c10::IValue> program_values(const PipelineValue& value) {
  PipelineValueReader reader(kLayer, value);
  reader.enter_list();
  reader.enter_map();
  std::istringstream entries(reader.key());
  std::map<std::size_t, c10::IValue> numbers;
  for (std::string entry; entries >> entry;) {
    const std::size_t equals = entry.find('=');
    numbers.emplace(
        std::stoull(entry.substr(0, equals)),
        number_in(entry.substr(equals + 1)));
  }
  std::vector<c10::IValue> values;
  std::size_t next = 1;
  while (next < value.tensors.size() || numbers.contains(values.size())) {
    const auto number = numbers.find(values.size());
    if (number != numbers.end()) {
      values.push_back(number->second);
    } else {
      values.emplace_back(value.tensors[next++]);
    }
  }
  return values;
}

std::vector<c10::IValue> program_inputs(
    const PipelineValue& value,
    const std::vector<std::string>& names) {
  std::vector<c10::IValue> inputs;
  if (!value.structure.starts_with('{')) {
    for (const at::Tensor& tensor : value.tensors) inputs.emplace_back(tensor);
    return inputs;
  }
  PipelineValueReader reader(kLayer, value);
  reader.enter_map();
  std::map<std::string, at::Tensor> given;
  while (!reader.leave()) {
    std::string key = reader.key();
    given.emplace(std::move(key), reader.tensor());
  }
  for (const std::string& name : names) {
    const auto found = given.find(name);
    if (found != given.end()) inputs.emplace_back(found->second);
  }
  if (inputs.size() == names.size() && given.size() == names.size())
    return inputs;
  std::vector<std::string> found;
  for (const auto& [name, tensor] : given) found.push_back(name);
  throw ConfigError(format(
      "[exported] the inputs must be {}, but are {}",
      printable(join(names, ", ")),
      found.empty() ? "none" : printable(join(found, ", "))));
}

PipelineValue program_results(
    const std::vector<c10::IValue>& values,
    const std::vector<std::string>& names) {
  if (values.size() == 1 && names[0].empty()) {
    return pipeline_value(result_tensor(values[0]));
  }
  // In the program's order, in which PippyModel returns them.
  PipelineValue results;
  results.structure = "{";
  for (std::size_t i = 0; i < values.size(); ++i) {
    at::Tensor tensor = result_tensor(values[i]);
    if (!tensor.defined()) continue;
    results.tensors.push_back(std::move(tensor));
    results.structure += std::to_string(names[i].size()) + ":" + names[i] + "t";
  }
  results.structure += "}";
  return results;
}

}  // namespace accelerate::detail
