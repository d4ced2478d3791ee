#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// `completion`: prints a script for a shell.
std::function<int()> add_completion_command(CLI::App& tool);

/// `man`: prints the manual page of the tool or of one command, in roff.
std::function<int()> add_man_command(CLI::App& tool);

/// Every --help page, as the Markdown page docs/reference/command_line.md.
std::string help_pages(const CLI::App& tool);

}  // namespace accelerate::cli
