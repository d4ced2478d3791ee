#include "cli/launch/launch_help.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

// The flag that chooses an engine, and the group of that engine's flags; empty
// if it has none.
struct Choice {
  const char* flag;
  std::string_view group;
};

constexpr std::array<Choice, 7> kChoices{{
    {"--cpu", ""},
    {"--multi_gpu", ""},
    {"--use_fsdp", "FSDP"},
    {"--use_deepspeed", "DeepSpeed"},
    {"--use_megatron_lm", "Megatron-LM"},
    {"--use_parallelism_config", "Parallelism"},
    {"--tpu", "Only for Python programs"},
}};

bool is_given(const CLI::App& app, const char* flag) {
  const CLI::Option* const option = app.get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

}  // namespace

std::string LaunchHelp::make_help(
    const CLI::App* app,
    std::string name,
    CLI::AppFormatMode mode) const {
  left_out_.clear();
  const bool is_chosen =
      std::any_of(kChoices.begin(), kChoices.end(), [&](const Choice& choice) {
        return is_given(*app, choice.flag);
      });
  for (const Choice& choice : kChoices) {
    if (is_chosen && !choice.group.empty() && !is_given(*app, choice.flag))
      left_out_.emplace_back(choice.group);
  }
  std::string text = Formatter::make_help(app, std::move(name), mode);
  if (!left_out_.empty()) {
    text += detail::format(
        "\nLeft out: {}. For all flags: accelerate-cpp launch --help\n",
        detail::join(left_out_, ", "));
  }
  return text;
}

std::string LaunchHelp::make_group(
    std::string group,
    bool is_positional,
    std::vector<const CLI::Option*> options) const {
  if (std::find(left_out_.begin(), left_out_.end(), group) != left_out_.end())
    return {};
  return Formatter::make_group(
      std::move(group), is_positional, std::move(options));
}

}  // namespace accelerate::cli
