#include "engines/fp8_recipe.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "config/options/option_table.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kMxVariable =
    "ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING";
constexpr std::array<std::string_view, 3> kOverrideVariables{
    "ACCELERATE_FP8_OVERRIDE_FPROP",
    "ACCELERATE_FP8_OVERRIDE_DGRAD",
    "ACCELERATE_FP8_OVERRIDE_WGRAD"};

// The key in use, of two spellings: Accelerate's questions write some keys
// differently from how its launcher reads them.
std::string_view spelling_of(
    const Settings& settings,
    std::string_view key,
    std::string_view other_key) {
  settings.mark_read(key);
  settings.mark_read(other_key);
  const bool is_other =
      !settings.is_given(key) && settings.find(other_key) != nullptr;
  return is_other ? other_key : key;
}

// A word from an option's list of choices, in that list's case.
std::string known_word(std::string_view key, const std::string& given) {
  return std::get<std::string>(parse_option(*find_option(key), given));
}

bool truth_of(std::string_view subject, std::string_view text) {
  if (const auto truth = parse_bool(trim(text))) return *truth;
  throw ConfigError(format(
      "[config] {} must be true or false, but is \"{}\"", subject, text));
}

bool variable_is_true(const Environment& environment, std::string_view name) {
  const auto text = environment.get(name);
  return text && truth_of(name, *text);
}

OverrideLinearPrecision launched_override(
    const Settings& settings,
    const Environment& environment) {
  constexpr std::string_view kKey = "fp8_override_linear_precision";
  OverrideLinearPrecision found;
  const std::array fields{&found.fprop, &found.dgrad, &found.wgrad};
  const std::string text = *settings.text(kKey);
  std::string list = text;
  // The text may be a list in a file.
  std::erase_if(list, [](char c) { return c == '[' || c == ']'; });
  const std::vector<std::string> words = split(list, ',');
  if (words.size() != fields.size()) {
    throw ConfigError(format(
        "[config] {} must be three booleans, for fprop, dgrad "
        "and wgrad, but is \"{}\"",
        kKey,
        text));
  }
  for (std::size_t i = 0; i < fields.size(); ++i) {
    *fields[i] = environment.has(kOverrideVariables[i])
        ? variable_is_true(environment, kOverrideVariables[i])
        : truth_of(kKey, words[i]);
  }
  return found;
}

void require_in_range(
    std::string_view name,
    std::int64_t value,
    std::int64_t least) {
  if (value >= least) return;
  throw ConfigError(format(
      "[precision] {} of the fp8 recipe must be at least {}, but is {}",
      name,
      least,
      value));
}

void require_no_amax(const TERecipeKwargs& given, const Settings& settings) {
  const bool is_given = given.amax_history_len || given.amax_compute_algo ||
      settings.is_given("fp8_amax_history_len") ||
      settings.is_given("fp8_amax_compute_algo");
  if (!is_given) return;
  throw ConfigError(
      "[precision] amax_history_len and amax_compute_algo do not apply to "
      "MXFP8 block scaling, which has no history; leave them out, or "
      "use_mxfp8_block_scaling");
}

// The recipe that applies; never FP8RecipeKwargs, which stands for one of two
// others.
FP8Recipe recipe_of_backend(
    const std::optional<FP8Recipe>& given,
    const Settings& settings) {
  const auto launched = settings.text("fp8_backend");
  if (!given) {
    const std::string backend = to_upper(launched.value_or("AO"));
    if (backend == "TE") return TERecipeKwargs();
    if (backend == "MSAMP") return MSAMPRecipeKwargs();
    return AORecipeKwargs();
  }
  const auto* const either = std::get_if<FP8RecipeKwargs>(&*given);
  if (either == nullptr) return *given;
  if (backend_of(*either, settings) == "MSAMP")
    return MSAMPRecipeKwargs{either->opt_level};
  return static_cast<const TERecipeKwargs&>(*either);
}

Float8Request request_of(const TERecipeKwargs& resolved) {
  if (*resolved.use_mxfp8_block_scaling && *resolved.fp8_format == "E5M2") {
    throw ConfigError(
        "[precision] fp8_format must be E4M3 or HYBRID for MXFP8 block "
        "scaling, but is E5M2");
  }
  return {resolved};
}

}  // namespace

AORecipeKwargs resolve_recipe(
    const AORecipeKwargs& given,
    const Settings& settings) {
  AORecipeKwargs recipe = given;
  if (!given.config) {
    if (!recipe.pad_inner_dim)
      recipe.pad_inner_dim = settings.boolean("fp8_pad_inner_dim");
    if (!recipe.enable_fsdp_float8_all_gather) {
      recipe.enable_fsdp_float8_all_gather =
          settings.boolean("fp8_enable_fsdp_float8_all_gather");
    }
    recipe.config = Float8LinearConfig{
        .pad_inner_dim = *recipe.pad_inner_dim,
        .enable_fsdp_float8_all_gather = *recipe.enable_fsdp_float8_all_gather};
  } else if (given.pad_inner_dim || given.enable_fsdp_float8_all_gather) {
    throw ConfigError(
        "[precision] AORecipeKwargs has a config as well as pad_inner_dim or "
        "enable_fsdp_float8_all_gather; set them in the config");
  }
  if (recipe.config->enable_fsdp_float8_all_gather &&
      recipe.config->recipe != Float8LinearRecipeName::tensorwise) {
    throw ConfigError(
        "[precision] enable_fsdp_float8_all_gather needs the tensorwise "
        "recipe, in which both products of a weight share one cast; leave it "
        "out, or use that recipe");
  }
  return recipe;
}

TERecipeKwargs resolve_recipe(
    const TERecipeKwargs& given,
    const Settings& settings,
    const Environment& environment) {
  TERecipeKwargs recipe = given;
  const auto fill = [](auto& field, auto&& launched) {
    auto value = launched();
    if (!field) field = std::move(value);
  };
  fill(recipe.use_autocast_during_eval, [&] {
    return settings.boolean("fp8_use_autocast_during_eval");
  });
  fill(recipe.margin, [&] { return *settings.integer("fp8_margin"); });
  fill(recipe.interval, [&] { return *settings.integer("fp8_interval"); });
  fill(recipe.fp8_format, [&] { return *settings.text("fp8_format"); });
  fill(recipe.amax_history_len, [&] {
    return *settings.integer(spelling_of(
        settings, "fp8_amax_history_len", "fp8_amax_history_length"));
  });
  fill(recipe.amax_compute_algo, [&] {
    return *settings.text(spelling_of(
        settings, "fp8_amax_compute_algo", "fp8_amax_compute_algorithm"));
  });
  fill(recipe.override_linear_precision, [&] {
    return launched_override(settings, environment);
  });
  fill(recipe.use_mxfp8_block_scaling, [&] {
    return variable_is_true(environment, kMxVariable);
  });
  recipe.fp8_format = known_word("fp8_format", *recipe.fp8_format);
  recipe.amax_compute_algo =
      known_word("fp8_amax_compute_algo", *recipe.amax_compute_algo);
  require_in_range("margin", *recipe.margin, 0);
  require_in_range("interval", *recipe.interval, 1);
  require_in_range("amax_history_len", *recipe.amax_history_len, 1);
  return recipe;
}

MSAMPRecipeKwargs resolve_recipe(
    const MSAMPRecipeKwargs& given,
    const Settings& settings) {
  const std::string launched = *settings.text(
      spelling_of(settings, "fp8_opt_level", "fp8_optimization_level"));
  return {known_word("fp8_opt_level", given.opt_level.value_or(launched))};
}

std::string backend_of(const FP8RecipeKwargs& given, const Settings& settings) {
  std::string backend = to_upper(
      given.backend.value_or(settings.text("fp8_backend").value_or("TE")));
  if (backend == "TE" || backend == "MSAMP") return backend;
  throw ConfigError(format(
      "[precision] backend of FP8RecipeKwargs must be TE or MSAMP, but is "
      "\"{}\"; use AORecipeKwargs for torchao",
      backend));
}

Float8Request read_float8_request(
    const std::optional<FP8Recipe>& given,
    const Settings& settings,
    const Environment& environment) {
  const FP8Recipe recipe = recipe_of_backend(given, settings);
  if (const auto* const ao = std::get_if<AORecipeKwargs>(&recipe)) {
    Float8Request request{resolve_recipe(*ao, settings)};
    request.float8_all_gather_is_given = gathers_in_float8(request) &&
        (ao->config || ao->enable_fsdp_float8_all_gather);
    return request;
  }
  if (const auto* const msamp = std::get_if<MSAMPRecipeKwargs>(&recipe))
    return {resolve_recipe(*msamp, settings)};
  const auto& te = std::get<TERecipeKwargs>(recipe);
  TERecipeKwargs resolved = resolve_recipe(te, settings, environment);
  if (*resolved.use_mxfp8_block_scaling) {
    require_no_amax(te, settings);
    const bool is_open = !te.fp8_format && !settings.is_given("fp8_format");
    if (is_open) resolved.fp8_format = "E4M3";
  }
  return request_of(resolved);
}

bool gathers_in_float8(const Float8Request& request) {
  const auto* const ao = std::get_if<AORecipeKwargs>(&request.recipe);
  return ao != nullptr && ao->config->enable_fsdp_float8_all_gather;
}

}  // namespace accelerate::detail
