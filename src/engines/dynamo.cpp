#include "engines/dynamo.h"

#include <string>
#include <string_view>
#include <variant>

#include "config/options/option_table.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kBackend = "dynamo_backend";

std::string known_backend(const std::string& name) {
  return std::get<std::string>(parse_option(*find_option(kBackend), name));
}

}  // namespace

TorchDynamoOptions resolve_dynamo(
    const TorchDynamoOptions& given,
    const Settings& settings) {
  TorchDynamoOptions options = given;
  options.backend =
      known_backend(given.backend.value_or(*settings.text(kBackend)));
  if (!options.mode) options.mode = settings.text("dynamo_mode");
  const auto take = [&](std::optional<bool>& field, std::string_view key) {
    if (!field) field = settings.boolean(key);
  };
  take(options.fullgraph, "dynamo_use_fullgraph");
  take(options.use_regional_compilation, "dynamo_use_regional_compilation");
  if (settings.is_given("dynamo_use_dynamic"))
    take(options.dynamic, "dynamo_use_dynamic");
  return options;
}

std::vector<IgnoredSetting> dynamo_without_effect(
    const TorchDynamoOptions* given,
    const Settings& settings) {
  std::vector<IgnoredSetting> ignored;
  const auto found =
      resolve_dynamo(given ? *given : TorchDynamoOptions(), settings);
  // Compiling nothing is exactly what happens here.
  if (found.disable) return {};
  const bool compiles = found.backend != "no";
  const auto note = [&](bool is_in_code, std::string_view key) {
    const Resolved* const resolved = settings.find(key);
    const bool is_in_environment =
        resolved != nullptr && resolved->origin == Origin::environment;
    if (is_in_code) {
      ignored.push_back({std::string(key), {}, "code"});
    } else if (compiles && is_in_environment) {
      ignored.push_back({std::string(key), {}, resolved->where});
    }
  };
  const TorchDynamoOptions code = given ? *given : TorchDynamoOptions();
  note(code.backend && known_backend(*code.backend) != "no", kBackend);
  note(code.mode.has_value(), "dynamo_mode");
  note(code.fullgraph.has_value(), "dynamo_use_fullgraph");
  note(code.dynamic.has_value(), "dynamo_use_dynamic");
  note(
      code.use_regional_compilation.has_value(),
      "dynamo_use_regional_compilation");
  return ignored;
}

}  // namespace accelerate::detail
