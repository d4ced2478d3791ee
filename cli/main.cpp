#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>
#include <accelerate/version.h>

#include "base/text/text.h"
#include "cli/processes/failure.h"
#include "cli/tool/commands.h"
#include "config/options/option_table.h"

namespace {

namespace cli = accelerate::cli;

// Messages name files and quote their contents, which are untrusted.
void complain(const char* message) {
  std::fprintf(
      stderr,
      "accelerate-cpp: %s\n",
      accelerate::detail::printable_lines(message).c_str());
}

// Keeps files opened later from taking the descriptors of closed standard
// streams, and so receiving printed text.
void open_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) < 0) (void)::open("/dev/null", O_RDWR);
  }
}

using Commands = std::vector<std::pair<std::string, cli::RunCommand>>;

Commands add_commands(CLI::App& tool) {
  return {
      {"config", cli::add_config_command(tool)},
      {"env", cli::add_env_command(tool)},
      {"launch", cli::add_launch_command(tool)},
      {"test", cli::add_test_command(tool)},
      {"estimate-memory", cli::add_estimate_command(tool)},
      {"plan", cli::add_plan_command(tool)},
      {"checkpoint", cli::add_checkpoint_command(tool)},
      {"merge-weights", cli::add_merge_weights_command(tool)},
      {"convert", cli::add_convert_command(tool)},
      {"inspect", cli::add_inspect_command(tool)},
      {"to-fsdp2", cli::add_to_fsdp2_command(tool)},
      {"runs", cli::add_runs_command(tool)},
      {"replay", cli::add_replay_command(tool)},
      {"watch", cli::add_watch_command(tool)},
      {"report", cli::add_run_report_command(tool)},
      {"trace", cli::add_trace_command(tool)},
      {"ps", cli::add_ps_command(tool)},
      {"stacks", cli::add_stacks_command(tool)},
      {"resize", cli::add_resize_command(tool)},
      {"tpu-config", cli::add_tpu_config_command(tool)},
      {"completion", cli::add_completion_command(tool)},
      {"man", cli::add_man_command(tool)}};
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kWrongUse = 2;
  open_standard_streams();
  CLI::App tool(
      "Launches programs that train or serve with accelerate.cpp.",
      "accelerate-cpp");
  tool.set_version_flag("--version", "accelerate-cpp " ACCELERATE_VERSION);
  tool.require_subcommand(1);
  const Commands commands = add_commands(tool);
  const CLI::App* const options = tool.add_subcommand(
      "options", "print every setting with its flag, variable and default");
  // Prints the page for docs/.
  CLI::App* const pages = tool.add_subcommand("help-pages")->group("");
  try {
    std::vector<std::string> words =
        cli::without_separator(tool, {argv + 1, argv + argc});
    // CLI11 takes them in reverse.
    std::ranges::reverse(words);
    tool.parse(std::move(words));
    if (options->parsed()) {
      std::fputs(accelerate::detail::options_page().c_str(), stdout);
      return 0;
    }
    if (pages->parsed()) {
      std::fputs(cli::help_pages(tool).c_str(), stdout);
      return 0;
    }
    for (const auto& [name, run] : commands) {
      if (tool.got_subcommand(name)) return run();
    }
    return kWrongUse;
  } catch (const CLI::ParseError& error) {
    const auto unknown =
        cli::describe_unknown_command(tool, {argv + 1, argv + argc});
    // Exit code 0 is --help or --version.
    if (unknown && error.get_exit_code() != 0) {
      std::fprintf(stderr, "accelerate-cpp: %s\n", unknown->c_str());
      return kWrongUse;
    }
    return tool.exit(error) == 0 ? 0 : kWrongUse;
  } catch (const accelerate::ConfigError& error) {
    complain(error.what());
    return kWrongUse;
  } catch (const std::exception&) {
    complain(cli::describe_failure(std::current_exception()).c_str());
    return 1;
  }
}
