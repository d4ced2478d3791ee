#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "cli/checkpoint_command.h"
#include "cli/launch_command.h"
#include "cli/weights_command.h"
#include "config/option_table.h"

int main(int argc, char** argv) {
  constexpr int kWrongUse = 2;
  CLI::App tool(
      "Launches programs that train or serve with accelerate.cpp.",
      "accelerate-cpp");
  tool.set_version_flag("--version", "accelerate-cpp " ACCELERATE_VERSION);
  tool.require_subcommand(1);
  const auto launch = accelerate::cli::add_launch_command(tool);
  const auto checkpoint = accelerate::cli::add_checkpoint_command(tool);
  const auto merge = accelerate::cli::add_merge_weights_command(tool);
  const auto convert = accelerate::cli::add_convert_command(tool);
  const CLI::App* options = tool.add_subcommand(
      "options", "print every setting with its flag, variable and default");
  try {
    tool.parse(argc, argv);
    if (options->parsed()) {
      std::fputs(accelerate::detail::options_page().c_str(), stdout);
      return 0;
    }
    if (tool.got_subcommand("checkpoint")) return checkpoint();
    if (tool.got_subcommand("merge-weights")) return merge();
    if (tool.got_subcommand("convert")) return convert();
    return launch();
  } catch (const CLI::ParseError& error) {
    return tool.exit(error) == 0 ? 0 : kWrongUse;
  } catch (const accelerate::ConfigError& error) {
    std::fprintf(stderr, "accelerate-cpp: %s\n", error.what());
    return kWrongUse;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "accelerate-cpp: %s\n", error.what());
    return 1;
  }
}
