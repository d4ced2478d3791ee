#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/text/text.h"
#include "cli/tool/commands.h"
#include "format/exported/describe.h"
#include "format/exported/exported_archive.h"

namespace accelerate::cli {

namespace {

using detail::format;
using detail::printable;

struct InspectFlags {
  std::string file;
  std::string model = "model";
};

void print_line(const std::string& line) { std::printf("%s\n", line.c_str()); }

void print_counts(
    const char* title,
    const std::map<std::string, std::size_t>& counts) {
  print_line(title);
  for (const auto& [name, count] : counts) {
    print_line(format("  {} {}", count, printable(name)));
  }
}

int inspect(const InspectFlags& flags) {
  const detail::ExportedArchive archive{std::filesystem::path(flags.file)};
  const ExportedDescription program =
      detail::describe_exported(archive, flags.model);
  print_line(format(
      "exported by torch {}, {}, {}",
      printable(program.torch_version),
      program.autocast.empty()
          ? "without autocast"
          : format("under autocast in {}", printable(program.autocast)),
      program.has_evaluation ? "with a graph of its own for eval()"
                             : "one graph for train() and eval()"));
  print_line(format(
      "{} parameters, {} weights",
      program.num_parameters,
      program.has_weights ? "with" : "without"));
  print_line("inputs");
  for (const auto& input : program.inputs) {
    print_line(format(
        "  {} {} {}",
        printable(input.name),
        input.dtype,
        input.sizes.empty() ? ""
                            : "(" + detail::join(input.sizes, ", ") + ")"));
  }
  std::vector<std::string> outputs = program.outputs;
  for (std::string& name : outputs) {
    if (name.empty()) name = "(unnamed)";
  }
  print_line(format("outputs {}", printable(detail::join(outputs, ", "))));
  print_counts("modules", program.classes);
  print_counts("operators", program.operators);
  if (program.unsupported.empty()) return 0;
  print_line("not supported");
  for (const std::string& what : program.unsupported) print_line("  " + what);
  return 1;
}

}  // namespace

RunCommand add_inspect_command(CLI::App& tool) {
  const auto flags = std::make_shared<InspectFlags>();
  CLI::App* const command = tool.add_subcommand(
      "inspect",
      "describe a model that Python exported (.pt2); fails if it has what "
      "cannot be run");
  command->add_option("file", flags->file, "file of torch.export.save")
      ->required();
  command
      ->add_option(
          "--model", flags->model, "name of the program within the file")
      ->capture_default_str();
  return [=] { return inspect(*flags); };
}

}  // namespace accelerate::cli
