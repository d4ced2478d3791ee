#include "format/exported/exported_program.h"

#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/limits.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "format/exported/argument_parser.h"
#include "format/exported/treespec.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMajorVersion = 8;

class ProgramParser {
 public:
  ProgramParser(const Json& program, const std::string& name)
      : program_(program), module_(program.at("graph_module")), name_(name) {}

  ExportedProgram parse() {
    result_.torch_version = program_.value("torch_version", "");
    result_.graph = arguments_.graph(module_.at("graph"));
    read_signature();
    name_arguments_and_results();
    read_input_tensors();
    for (const auto& [symbol, range] :
         program_.at("range_constraints").items()) {
      result_.ranges.emplace(symbol, range_in(range));
    }
    result_.classes = std::move(arguments_.classes);
    for (const auto& [what, node] : arguments_.unsupported) {
      result_.unsupported.push_back(
          node.empty() ? what : format("{} ({})", what, printable(node)));
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(
        format("[exported] {} cannot be read: {}", name_, what));
  }

  // The only entry of a specification.
  static std::pair<const std::string&, const Json&> entry_of(const Json& spec) {
    static_cast<void>(spec.get_ref<const Json::object_t&>());
    if (spec.empty()) static_cast<void>(spec.at("kind"));
    const auto entry = spec.cbegin();
    return {entry.key(), entry.value()};
  }

  void read_signature() {
    const Json& signature = module_.at("signature");
    for (const Json& spec : signature.at("input_specs")) read_input(spec);
    for (const Json& spec : signature.at("output_specs")) read_output(spec);
    if (result_.inputs.size() != result_.graph.inputs.size() ||
        result_.outputs.size() != result_.graph.outputs.size()) {
      fail(format(
          "its graph has {} inputs and {} outputs, but its "
          "signature has {} and {}",
          result_.graph.inputs.size(),
          result_.graph.outputs.size(),
          result_.inputs.size(),
          result_.outputs.size()));
    }
  }

  void read_input(const Json& spec) {
    using Kind = ExportedInput::Kind;
    const auto [kind, value] = entry_of(spec);
    ExportedInput input;
    const auto name_it = [&, &fields = value](Kind of, const char* key) {
      input.kind = of;
      input.name = fields.at(key).get<std::string>();
    };
    if (kind == "parameter") {
      name_it(Kind::parameter, "parameter_name");
    } else if (kind == "buffer") {
      const bool is_persistent = value.at("persistent").get<bool>();
      name_it(
          is_persistent ? Kind::buffer : Kind::hidden_buffer, "buffer_name");
    } else if (kind == "tensor_constant") {
      name_it(Kind::constant, "tensor_constant_name");
    } else if (kind == "constant_input") {
      name_it(Kind::fixed, "name");
    } else if (kind == "user_input") {
      const ExportedArgument argument =
          arguments_.argument(value.at("arg"), "the arguments of forward()");
      const std::string* name = argument.reference();
      input.kind = name != nullptr ? Kind::user : Kind::fixed;
      if (name != nullptr) input.name = *name;
    } else {
      arguments_.unsupported.emplace(
          format("inputs of kind {}", printable(kind)), "");
    }
    if (input.name.size() > kMostNameBytes) fail("an input's name is too long");
    result_.inputs.push_back(std::move(input));
  }

  void read_output(const Json& spec) {
    const auto [kind, value] = entry_of(spec);
    ExportedOutput output;
    if (kind == "buffer_mutation") {
      output.buffer = value.at("buffer_name").get<std::string>();
    } else if (kind != "user_output" && kind != "loss_output") {
      arguments_.unsupported.emplace(
          format("outputs of kind {}", printable(kind)), "");
    }
    result_.outputs.push_back(std::move(output));
  }

  [[nodiscard]] NamedTupleFields named_tuples() const {
    NamedTupleFields fields;
    const auto found = module_.find("treespec_namedtuple_fields");
    if (found == module_.end()) return fields;
    for (const auto& [type, definition] : found->items()) {
      fields[type] =
          definition.at("field_names").get<std::vector<std::string>>();
    }
    return fields;
  }

  void name_arguments_and_results() {
    const Json& signature =
        module_.at("module_call_graph").at(0).at("signature");
    const NamedTupleFields fields = named_tuples();
    std::vector<std::string> forward_names;
    const auto found = signature.find("forward_arg_names");
    if (found != signature.end() && !found->is_null()) {
      forward_names = found->get<std::vector<std::string>>();
    }
    const auto spec = [&](const char* key) {
      return signature.at(key).get<std::string>();
    };
    auto names = argument_names(spec("in_spec"), forward_names, fields, name_);
    std::vector<ExportedInput*> given;
    for (ExportedInput& input : result_.inputs) {
      if (input.kind == ExportedInput::Kind::user ||
          input.kind == ExportedInput::Kind::fixed) {
        given.push_back(&input);
      }
    }
    for (std::size_t i = 0; i < given.size() && names.size() == given.size();
         ++i)
      given[i]->name = std::move(names[i]);
    auto results = result_names(spec("out_spec"), fields, name_);
    std::size_t next = 0;
    for (ExportedOutput& output : result_.outputs) {
      if (output.buffer.empty() && next < results.size())
        output.name = std::move(results[next++]);
    }
  }

  void read_input_tensors() {
    const Json& values = module_.at("graph").at("tensor_values");
    for (std::size_t i = 0; i < result_.inputs.size(); ++i) {
      const std::string* name = result_.graph.inputs[i].reference();
      if (name == nullptr) continue;
      const auto found = values.find(*name);
      if (found == values.end()) continue;
      if (i == 0) {
        result_.device = found->at("device").at("type").get<std::string>();
      }
      if (result_.inputs[i].kind != ExportedInput::Kind::user) continue;
      ExportedInputTensor tensor;
      tensor.input = i;
      const auto dtype = exported_dtype(exported_integer(found->at("dtype")));
      if (!dtype) {
        arguments_.unsupported.emplace("an input's dtype", *name);
        continue;
      }
      tensor.dtype = *dtype;
      for (const Json& size : found->at("sizes"))
        tensor.sizes.push_back(size_in(size));
      result_.input_tensors.push_back(std::move(tensor));
    }
  }

  static ExportedSize size_in(const Json& size) {
    const auto [kind, value] = entry_of(size);
    if (kind == "as_int") return {exported_integer(value), {}};
    return {std::nullopt, value.at("expr_str").get<std::string>()};
  }

  static ExportedRange range_in(const Json& range) {
    ExportedRange found;
    const Json& min = range.at("min_val");
    const Json& max = range.at("max_val");
    if (!min.is_null()) found.min = exported_integer(min);
    if (!max.is_null()) found.max = exported_integer(max);
    return found;
  }

  const Json& program_;
  const Json& module_;
  std::string name_;
  ArgumentParser arguments_;
  ExportedProgram result_;
};

void require_version(const Json& program, const std::string& name) {
  const Json& version = program.at("schema_version");
  const std::int64_t major = exported_integer(version.at("major"));
  if (major == kMajorVersion) return;
  throw ConfigError(format(
      "[exported] {} must have version {} of torch.export's format, which "
      "torch 2.11 to 2.15 write, but has version {}.{}, written by torch {}",
      name,
      kMajorVersion,
      major,
      exported_integer(version.at("minor")),
      printable(program.value("torch_version", "?"))));
}

}  // namespace

ExportedProgram parse_exported_program(
    std::string_view text,
    const std::string& name) {
  const ParsedJson parsed = parse_json(text);
  std::string complaint = parsed.complaint;
  if (complaint.empty()) {
    try {
      require_version(parsed.value, name);
      return ProgramParser(parsed.value, name).parse();
    } catch (const Json::exception& error) {
      complaint = json_complaint(error);
    }
  }
  throw CheckpointError(
      format("[exported] {} cannot be read: {}", name, complaint));
}

}  // namespace accelerate::detail
