#include <algorithm>

#include <CLI/CLI.hpp>

#include "base/text/text.h"
#include "cli/tool/commands.h"

namespace accelerate::cli {

namespace {

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command :
       app.get_subcommands([](const CLI::App*) { return true; })) {
    // Hidden commands have no group.
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

// Whether the next word is this option's value.
bool takes_next_word(const CLI::App& app, const std::string& word) {
  if (word.find('=') != std::string::npos) return false;
  const CLI::Option* const option = app.get_option_no_throw(word);
  return option != nullptr && option->get_items_expected_max() > 0;
}

}  // namespace

std::optional<std::string> describe_unknown_command(
    CLI::App& tool,
    const std::vector<std::string>& words) {
  CLI::App* app = &tool;
  std::string path = tool.get_name();
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.starts_with('-')) {
      if (takes_next_word(*app, word)) ++i;
      continue;
    }
    const std::vector<std::string> known = subcommand_names(*app);
    if (known.empty()) return std::nullopt;
    if (std::ranges::find(known, word) != known.end()) {
      app = app->get_subcommand(word);
      path += " " + word;
      continue;
    }
    const auto meant = detail::nearest(word, known);
    return detail::format(
        "unknown command \"{}\"; {} See {} --help",
        word,
        meant ? detail::format("did you mean {}?", *meant)
              : "write one of " + detail::join(known, ", ") + ".",
        path);
  }
  return std::nullopt;
}

}  // namespace accelerate::cli
