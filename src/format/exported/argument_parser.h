#pragma once

#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "format/exported/exported_graph.h"

namespace accelerate::detail {

/// Reads the graphs of an exported program, and lists what cannot be run.
/// Throws nlohmann::json::exception for JSON of another structure.
class ArgumentParser {
 public:
  ExportedGraph graph(const nlohmann::json& graph);
  /// `node` is the owner of the argument, for complaints.
  ExportedArgument argument(
      const nlohmann::json& tagged,
      const std::string& node);

  /// Class names of the modules whose forward calls the nodes read so far.
  std::map<std::string, std::string> classes;
  /// The first node with each thing that cannot be run.
  std::map<std::string, std::string> unsupported;

 private:
  ExportedNode node(const nlohmann::json& node);
  ExportedArgument of_kind(
      const std::string& kind,
      const nlohmann::json& value,
      const std::string& node);
  ExportedList list(
      const nlohmann::json& list,
      const std::string& kind,
      const std::string& node);
  /// Reads a union of a name and a value: {"as_name": "n"} or {"as_int": 2}.
  ExportedArgument either(
      const nlohmann::json& tagged,
      const std::string& node);
  ExportedArgument enumerator(
      const std::string& kind,
      const nlohmann::json& number,
      const std::string& node);
  ExportedArgument unsupported_kind(
      const std::string& what,
      const std::string& node);
  std::string read_module_stack(const std::string& stack);
};

/// An integer; throws nlohmann::json::exception for any other value.
std::int64_t exported_integer(const nlohmann::json& number);

/// The place in a Python stack trace that a user would look at: the last call
/// outside PyTorch, or else the last one: "model.py:12: return self.head(x)".
/// Empty if there is none.
std::string source_line(std::string_view stack_trace);

}  // namespace accelerate::detail
