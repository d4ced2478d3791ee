#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Runs the command that was parsed, and returns the tool's exit code.
using RunCommand = std::function<int()>;

// Each of these functions adds a command to the tool, and returns the function
// that runs it.

/// `config` with default, update, show and schema.
RunCommand add_config_command(CLI::App& tool);
/// `env`: a report to paste into an issue.
RunCommand add_env_command(CLI::App& tool);
/// `launch`: starts the ranks of a program.
RunCommand add_launch_command(CLI::App& tool);
/// `test`: a self-check on the configured layout.
RunCommand add_test_command(CLI::App& tool);
/// `estimate-memory`: estimates the memory for loading and training a model.
RunCommand add_estimate_command(CLI::App& tool);
/// `plan`: the layout that a training run should use; 1 if nothing fits.
RunCommand add_plan_command(CLI::App& tool);
/// `checkpoint` with ls, verify, show, prune and convert.
RunCommand add_checkpoint_command(CLI::App& tool);
/// `merge-weights`: joins sharded weights into files for one process.
RunCommand add_merge_weights_command(CLI::App& tool);
/// `convert`: writes weights in another format.
RunCommand add_convert_command(CLI::App& tool);
/// `inspect`: what an exported model contains.
RunCommand add_inspect_command(CLI::App& tool);
/// `to-fsdp2`: converts a config file from FSDP 1.
RunCommand add_to_fsdp2_command(CLI::App& tool);
/// `runs` with list, show, compare and export.
RunCommand add_runs_command(CLI::App& tool);
/// `replay`: sends a journal to other trackers.
RunCommand add_replay_command(CLI::App& tool);
/// `watch`: runs as they happen, in the terminal or in a browser.
RunCommand add_watch_command(CLI::App& tool);
/// `report`: writes a page about runs as one file.
RunCommand add_run_report_command(CLI::App& tool);
/// `trace` with merge: works with the traces of profiles.
RunCommand add_trace_command(CLI::App& tool);
/// `ps`: what runs on this machine.
RunCommand add_ps_command(CLI::App& tool);
/// `stacks`: where the threads of a group's ranks are.
RunCommand add_stacks_command(CLI::App& tool);
/// `resize`: changes the number of ranks of an elastic group.
RunCommand add_resize_command(CLI::App& tool);
/// `tpu-config`: prints the command line to run, and nothing else.
RunCommand add_tpu_config_command(CLI::App& tool);
/// `completion`: prints a script for a shell.
RunCommand add_completion_command(CLI::App& tool);
/// `man`: prints the manual page of the tool or of one command, in roff.
RunCommand add_man_command(CLI::App& tool);

/// Every --help page, as the Markdown page docs/reference/command_line.md.
std::string help_pages(const CLI::App& tool);

/// Removes the "--" that may stand before the program of a `launch`, which
/// CLI11 does not expect there. `words` are the tool's arguments.
std::vector<std::string> without_separator(
    const CLI::App& tool,
    std::vector<std::string> words);

/// Describes a command line that did not parse: names the word in place of a
/// subcommand of `tool`, and the nearest subcommand. Returns nothing if there
/// is no such word.
std::optional<std::string> describe_unknown_command(
    CLI::App& tool,
    const std::vector<std::string>& words);

}  // namespace accelerate::cli
