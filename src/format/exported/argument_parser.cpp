#include "format/exported/argument_parser.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/limits.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;

// Kinds of lists, and the kind of their items.
constexpr std::pair<std::string_view, std::string_view> kListKinds[] = {
    {"as_bools", "as_bool"},
    {"as_floats", "as_float"},
    {"as_ints", "as_int"},
    {"as_optional_tensors", "as_optional_tensor"},
    {"as_strings", "as_string"},
    {"as_sym_bools", "as_sym_bool"},
    {"as_sym_floats", "as_sym_float"},
    {"as_sym_ints", "as_sym_int"},
    {"as_tensors", "as_tensor"},
};

// The only entry of an object, which is how the file writes a union.
std::pair<const std::string&, const Json&> only_entry(const Json& tagged) {
  // Throws for anything but an object with an entry.
  static_cast<void>(tagged.get_ref<const Json::object_t&>());
  if (tagged.size() != 1) static_cast<void>(tagged.at("one entry"));
  const auto entry = tagged.cbegin();
  return {entry.key(), entry.value()};
}

double decimal_of(const Json& number) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!number.is_string()) return number.get<double>();
  if (number == "Infinity") return kInfinity;
  if (number == "-Infinity") return -kInfinity;
  return std::numeric_limits<double>::quiet_NaN();
}

ExportedArgument reference_to(const Json& value) {
  return {ExportedReference{value.at("name").get<std::string>()}};
}

ExportedDevice device_in(const Json& device) {
  ExportedDevice found{device.at("type").get<std::string>(), {}};
  const Json& index = device.at("index");
  if (!index.is_null()) found.index = exported_integer(index);
  return found;
}

// The dotted name in a stack's entry. A module that is called again has "@1"
// behind it.
std::string dotted_name_in(std::string_view entry) {
  return std::string(entry.substr(0, entry.find('@')));
}

// The size in the example: {"as_int": 8}, or {"as_expr": {"hint": {"as_int":
// 8}, ...}}.
std::int64_t example_size(const Json& size) {
  constexpr std::int64_t kUnknown = -1;
  const auto [kind, value] = only_entry(size);
  if (kind == "as_int") return exported_integer(value);
  const auto hint = value.find("hint");
  if (hint == value.end() || hint->is_null()) return kUnknown;
  const auto [hint_kind, number] = only_entry(*hint);
  return hint_kind == "as_int" ? exported_integer(number) : kUnknown;
}

std::map<std::string, ExportedValue> values_in(const Json& graph) {
  std::map<std::string, ExportedValue> found;
  const auto values = graph.find("tensor_values");
  if (values == graph.end()) return found;
  for (const auto& [name, tensor] : values->items()) {
    ExportedValue value{
        exported_dtype(exported_integer(tensor.at("dtype"))), {}};
    for (const Json& size : tensor.at("sizes"))
      value.sizes.push_back(example_size(size));
    found.emplace(name, std::move(value));
  }
  return found;
}

// "path:12" of a line such as: File "path", line 12, in forward
std::optional<std::string> place_in(std::string_view line) {
  constexpr std::string_view kBegin = "File \"";
  constexpr std::string_view kLineMark = "\", line ";
  if (!line.starts_with(kBegin)) return std::nullopt;
  line.remove_prefix(kBegin.size());
  const std::size_t end = line.find(kLineMark);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view number = line.substr(end + kLineMark.size());
  return format(
      "{}:{}", line.substr(0, end), number.substr(0, number.find(',')));
}

bool is_in_pytorch(std::string_view place) {
  return place.find("/torch/") != std::string_view::npos;
}

}  // namespace

std::int64_t exported_integer(const Json& number) {
  if (!number.is_number_integer()) {
    // Throws, naming the type that was found.
    static_cast<void>(number.get_ref<const Json::number_integer_t&>());
  }
  return number.get<std::int64_t>();
}

ExportedGraph ArgumentParser::graph(const Json& graph) {
  ExportedGraph found;
  for (const Json& input : graph.at("inputs")) {
    found.inputs.push_back(argument(input, "the graph's inputs"));
  }
  for (const Json& item : graph.at("nodes")) found.nodes.push_back(node(item));
  for (const Json& output : graph.at("outputs")) {
    found.outputs.push_back(argument(output, "the graph's outputs"));
  }
  found.values = values_in(graph);
  return found;
}

ExportedNode ArgumentParser::node(const Json& node) {
  ExportedNode found;
  found.target = node.at("target").get<std::string>();
  for (const Json& input : node.at("inputs")) {
    found.inputs.push_back(
        {input.at("name").get<std::string>(),
         argument(input.at("arg"), found.target)});
  }
  for (const Json& output : node.at("outputs")) {
    found.outputs.push_back(argument(output, found.target));
  }
  const Json& metadata = node.at("metadata");
  const auto text = [&](const char* key) {
    const auto entry = metadata.find(key);
    return entry == metadata.end() ? std::string() : entry->get<std::string>();
  };
  found.module = read_module_stack(text("nn_module_stack"));
  found.source = source_line(text("stack_trace"));
  return found;
}

ExportedList ArgumentParser::list(
    const Json& list,
    const std::string& kind,
    const std::string& node) {
  ExportedList found;
  for (const Json& item : list) found.push_back(of_kind(kind, item, node));
  return found;
}

ExportedArgument ArgumentParser::either(
    const Json& tagged,
    const std::string& node) {
  const auto [kind, value] = only_entry(tagged);
  if (kind == "as_name") {
    return {ExportedReference{value.get<std::string>()}};
  }
  return of_kind(kind, value, node);
}

ExportedArgument ArgumentParser::argument(
    const Json& tagged,
    const std::string& node) {
  const auto [kind, value] = only_entry(tagged);
  return of_kind(kind, value, node);
}

ExportedArgument ArgumentParser::of_kind(
    const std::string& kind,
    const Json& value,
    const std::string& node) {
  if (kind == "as_none") return {};
  if (kind == "as_tensor") return reference_to(value);
  if (kind == "as_int") return {exported_integer(value)};
  if (kind == "as_float") return {decimal_of(value)};
  if (kind == "as_bool") return {value.get<bool>()};
  if (kind == "as_string") return {value.get<std::string>()};
  if (kind == "as_device") return {device_in(value)};
  if (kind == "as_complex") {
    return {std::complex<double>(
        decimal_of(value.at("real")), decimal_of(value.at("imag")))};
  }
  for (const auto& [list_kind, item_kind] : kListKinds) {
    if (kind == list_kind) return {list(value, std::string(item_kind), node)};
  }
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool" ||
      kind == "as_optional_tensor") {
    return either(value, node);
  }
  if (kind == "as_scalar_type" || kind == "as_layout" ||
      kind == "as_memory_format") {
    return enumerator(kind, value, node);
  }
  if (kind == "as_graph") {
    return {std::make_shared<const ExportedGraph>(graph(value.at("graph")))};
  }
  return unsupported_kind(
      format("arguments of kind {}", printable(kind)), node);
}

ExportedArgument ArgumentParser::enumerator(
    const std::string& kind,
    const Json& number,
    const std::string& node) {
  constexpr std::int64_t kStrided = 7;
  const std::int64_t value = exported_integer(number);
  if (kind == "as_scalar_type") {
    if (const auto dtype = exported_dtype(value)) return {*dtype};
    return unsupported_kind(format("the dtype with number {}", value), node);
  }
  if (kind == "as_layout") {
    if (value == kStrided) return {ExportedStrided{}};
    return unsupported_kind(format("the layout with number {}", value), node);
  }
  if (value >= 1 && value <= 4) {
    return {static_cast<ExportedMemoryFormat>(value)};
  }
  return unsupported_kind(
      format("the memory format with number {}", value), node);
}

ExportedArgument ArgumentParser::unsupported_kind(
    const std::string& what,
    const std::string& node) {
  unsupported.emplace(what, node);
  return {ExportedUnsupported{}};
}

// "key,dotted.name,package.Class;key,dotted.name,package.Class"
std::string ArgumentParser::read_module_stack(const std::string& stack) {
  std::string innermost;
  for (const std::string& entry : split(stack, ';')) {
    const std::size_t first = entry.find(',');
    const std::size_t last = entry.rfind(',');
    if (first == std::string::npos || first == last) continue;
    const std::string name = dotted_name_in(
        std::string_view(entry).substr(first + 1, last - first - 1));
    // torch.export writes this for a node outside all modules.
    if (name == "_empty_nn_module_stack_from_metadata_hook") continue;
    const std::string type = entry.substr(last + 1);
    if (name.size() > kMostNameBytes || type.size() > kMostNameBytes) continue;
    classes.emplace(name, type.substr(type.rfind('.') + 1));
    innermost = name;
  }
  return innermost;
}

std::string source_line(std::string_view stack_trace) {
  std::string last;
  std::string last_outside;
  std::string* called = nullptr;
  while (!stack_trace.empty()) {
    const std::size_t end =
        std::min(stack_trace.find('\n'), stack_trace.size());
    const std::string_view line = trim(stack_trace.substr(0, end));
    stack_trace.remove_prefix(std::min(end + 1, stack_trace.size()));
    if (const auto place = place_in(line)) {
      called = is_in_pytorch(*place) ? &last : &last_outside;
      *called = place->substr(0, kMostNameBytes);
    } else if (called != nullptr && !line.empty()) {
      // Source code follows its place; markers below it are left out.
      *called += format(": {}", line.substr(0, kMostNameBytes));
      called = nullptr;
    }
  }
  return last_outside.empty() ? last : last_outside;
}

}  // namespace accelerate::detail
