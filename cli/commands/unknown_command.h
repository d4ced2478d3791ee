#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// For a command line that did not parse: an error that names the word in the
/// place of a subcommand of `tool`, and the nearest subcommand. Nothing if
/// there is no such word.
std::optional<std::string> describe_unknown_command(
    CLI::App& tool,
    const std::vector<std::string>& words);

}  // namespace accelerate::cli
