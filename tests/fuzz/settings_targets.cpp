#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/text/json_text.h"
#include "base/text/text.h"
#include "cli/launch/decision/launch_decision.h"
#include "cli/launch/decision/launch_flags.h"
#include "cli/launch/decision/launch_plan.h"
#include "config/files/config_file.h"
#include "config/settings.h"
#include "data/datasets/json_constants.h"
#include "data/datasets/nested_numbers.h"
#include "engines/deepspeed/deepspeed.h"
#include "engines/deepspeed/deepspeed_section.h"
#include "fuzz/guarded.h"
#include "fuzz/targets.h"
#include "planning/memory_estimate.h"
#include "planning/model_config.h"
#include "planning/training_memory.h"

namespace accelerate::fuzz {

namespace {

constexpr int kNumDevices = 2;

// Does what `launch` does with the settings for one of our programs.
void plan_launch(
    const detail::Settings& settings,
    const detail::ConfigDocument* file,
    const std::vector<std::string>& command) {
  const cli::LaunchDecision decision =
      cli::decide_launch(settings, file, kNumDevices);
  detail::Environment environment;
  environment.set("PATH", "/usr/bin:/bin");
  const cli::Machine machine{
      4, std::vector<detail::Gpu>(kNumDevices), {0, 1, 2, 3}, 4};
  const cli::LaunchPlan plan =
      cli::make_launch_plan(decision, settings, environment, machine, command);
  static_cast<void>(cli::describe(plan, settings));
  static_cast<void>(cli::launch_warnings(settings, plan.program));
}

}  // namespace

void config_file(Input input) {
  for (const char* const name : {"input.yaml", "input.json"}) {
    guarded([&] {
      const detail::ConfigDocument document =
          detail::parse_config(std::string(text_of(input)), name);
      guarded([&] {
        static_cast<void>(detail::updated_text(
            document,
            detail::values_to_write(detail::values_in_force(document))));
      });
      const std::array sources{detail::source_from_config(document)};
      plan_launch(detail::resolve(sources), &document, {"true"});
    });
  }
}

void deepspeed_config(Input input) {
  std::error_code ignored;
  const std::string text(text_of(input));
  // The text of an existing path would be read as a file.
  if (std::filesystem::exists(text, ignored)) return;
  guarded([&] {
    DeepSpeedOptions options;
    options.hf_ds_config = text;
    // With the defaults of the table.
    detail::DeepSpeedConfig config(
        options, detail::resolve(std::span<const detail::Source>()), {});
    guarded([&] { config.set_mixed_precision("bf16"); });
    config.fill(
        {{"train_micro_batch_size_per_gpu", 4},
         {"train_batch_size", 8},
         {"optimizer.params.lr", 1e-3}});
    static_cast<void>(config.json().dump(
        2, ' ', false, nlohmann::json::error_handler_t::replace));
  });
  for (const char* const name : {"optimizer", "scheduler"}) {
    guarded([&] {
      detail::DeepSpeedSectionReader section(text, name, {{"lr", 0.1}});
      static_cast<void>(section.number("lr", 0.1));
      static_cast<void>(section.pair("betas", {0.9, 0.999}));
      static_cast<void>(section.truth("adam_w_mode", true));
      static_cast<void>(section.text("warmup_type", "log"));
      section.require_all_known();
    });
  }
}

void model_config(Input input) {
  const auto path = scratch() / "config.json";
  put(path, text_of(input));
  guarded([&] {
    const detail::ModelTree model = detail::read_model_config(path);
    const auto layers = detail::largest_layers(model.root, model.no_split);
    const std::uint64_t total = detail::total_bytes(model.root);
    static_cast<void>(
        detail::estimate_memory("float32", layers.num_bytes, total));
    static_cast<void>(detail::training_memory(model, layers.num_bytes, {}));
  });
  guarded([&] { static_cast<void>(detail::find_transformer_shape(path)); });
}

void json_lines(Input input) {
  for (const std::string& line : detail::split(text_of(input), '\n')) {
    const detail::ParsedJson parsed = detail::parse_json_of_python(line);
    // Readers of lines stop at the first that is not JSON, and throwing an
    // exception for each further line would take most of the time.
    if (!parsed.complaint.empty()) return;
    if (!parsed.value.is_object()) continue;
    for (const auto& [key, value] : parsed.value.items()) {
      const auto shape = detail::shape_of_lists(value);
      if (!shape) continue;
      static_cast<void>(detail::numbers_in_lists(value, *shape));
      static_cast<void>(detail::integers_in_lists(value, *shape));
    }
  }
}

namespace {

/// Shared by inputs: CLI11 compares each added option with all others, which
/// takes a hundred times longer than parsing. It never clears its list of
/// parsed options, so a parser takes a limited number of inputs.
struct LaunchParser {
  static constexpr int kMostInputs = 10'000;

  CLI::App tool{"tool"};
  CLI::App& command = *tool.add_subcommand("launch")->prefix_command();
  cli::LaunchFlags flags{command};
  int num_inputs = 0;
};

}  // namespace

void launch_arguments(Input input) {
  static std::optional<LaunchParser> parser;
  // Parsing resets the flags of the previous input, but not this value.
  if (!parser || !parser->flags.config_file().empty() ||
      ++parser->num_inputs > LaunchParser::kMostInputs) {
    parser.emplace();
  }
  const cli::LaunchFlags& flags = parser->flags;
  std::vector<std::string> arguments = detail::split(text_of(input), '\n');
  // Program arguments contain no zero bytes.
  for (std::string& each : arguments) each = each.c_str();
  arguments.insert(arguments.begin(), "launch");
  std::reverse(arguments.begin(), arguments.end());
  try {
    parser->tool.parse(arguments);
  } catch (const CLI::ParseError&) {
    return;
  }
  guarded([&] {
    const std::array sources{flags.source()};
    const detail::Settings settings = detail::resolve(sources);
    static_cast<void>(flags.arguments_without({"num_processes"}));
    plan_launch(settings, nullptr, flags.program());
  });
}

}  // namespace accelerate::fuzz
