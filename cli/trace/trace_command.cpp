#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/text/text.h"
#include "cli/tool/commands.h"
#include "cli/trace/merge_traces.h"

namespace accelerate::cli {

namespace {

namespace fs = std::filesystem;

struct MergeFlags {
  std::vector<std::string> inputs;
  std::string output;
};

int merge(const MergeFlags& flags) {
  std::vector<fs::path> paths;
  for (const fs::path input : flags.inputs) {
    if (fs::is_regular_file(input)) {
      paths.push_back(input);
      continue;
    }
    for (fs::path& path : traces_in(input)) paths.push_back(std::move(path));
  }
  const MergedTraces merged = merge_traces(paths, flags.output);
  for (const std::string& warning : merged.warnings)
    std::fprintf(stderr, "accelerate-cpp: warning: %s\n", warning.c_str());
  std::printf(
      "%zu events of %zu ranks merged into %s\n",
      merged.num_events,
      paths.size(),
      detail::printable(flags.output, std::string::npos).c_str());
  return 0;
}

}  // namespace

RunCommand add_trace_command(CLI::App& tool) {
  CLI::App* const command =
      tool.add_subcommand("trace", "work with the traces of profiles");
  command->require_subcommand(1);
  CLI::App* const merging = command->add_subcommand(
      "merge", "merge the ranks' traces into one, on one clock");
  const auto flags = std::make_shared<MergeFlags>();
  merging
      ->add_option(
          "traces",
          flags->inputs,
          "directory with profile_<rank>.json, or trace files")
      ->required();
  merging->add_option("-o,--output", flags->output, "the merged trace")
      ->required();
  return [flags] { return merge(*flags); };
}

}  // namespace accelerate::cli
