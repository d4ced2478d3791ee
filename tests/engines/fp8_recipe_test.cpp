#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "engines/fp8_recipe.h"
#include "engines/sources.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace fp8_recipe_test {

using testing::expect_error;
using testing::Variables;

// Returns the recipe of a program that gives `given`.
Float8Request requested(
    const std::optional<FP8Recipe>& given,
    const Variables& variables = {}) {
  const RequestSources sources = testing::sources({}, variables);
  return read_float8_request(given, sources.settings, sources.environment);
}

TERecipeKwargs te(
    const TERecipeKwargs& given,
    const Variables& variables = {}) {
  return std::get<TERecipeKwargs>(requested(given, variables).recipe);
}

TEST(Fp8Recipe, IsTorchaosUnlessTheLauncherSaysOtherwise) {
  const auto found = std::get<AORecipeKwargs>(requested({}).recipe);
  EXPECT_EQ(found.config->recipe, Float8LinearRecipeName::tensorwise);
  EXPECT_TRUE(found.config->pad_inner_dim);
  EXPECT_FALSE(
      std::get<AORecipeKwargs>(
          requested({}, {{"ACCELERATE_FP8_PAD_INNER_DIM", "0"}}).recipe)
          .config->pad_inner_dim);
  EXPECT_TRUE(std::holds_alternative<TERecipeKwargs>(
      requested({}, {{"ACCELERATE_FP8_BACKEND", "TE"}}).recipe));
  EXPECT_TRUE(std::holds_alternative<AORecipeKwargs>(
      requested(AORecipeKwargs(), {{"ACCELERATE_FP8_BACKEND", "te"}}).recipe));
}

TEST(Fp8Recipe, TakesTheCodeBeforeTheLauncher) {
  const Variables variables{
      {"ACCELERATE_FP8_MARGIN", "3"},
      {"ACCELERATE_FP8_INTERVAL", "2"},
      {"ACCELERATE_FP8_FORMAT", "E4M3"},
      {"ACCELERATE_FP8_AMAX_HISTORY_LEN", "16"},
      {"ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "max"},
      {"ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "yes"},
      {"ACCELERATE_FP8_OVERRIDE_WGRAD", "1"}};
  const TERecipeKwargs launched = te({}, variables);
  EXPECT_EQ(launched.margin, 3);
  EXPECT_EQ(launched.interval, 2);
  EXPECT_EQ(launched.fp8_format, "E4M3");
  EXPECT_EQ(launched.amax_history_len, 16);
  EXPECT_EQ(launched.amax_compute_algo, "max");
  EXPECT_EQ(launched.use_autocast_during_eval, true);
  EXPECT_EQ(
      launched.override_linear_precision,
      (OverrideLinearPrecision{.wgrad = true}));
  const TERecipeKwargs coded =
      te({.use_autocast_during_eval = false,
          .margin = 1,
          .interval = 4,
          .fp8_format = "hybrid",
          .amax_history_len = 8,
          .amax_compute_algo = "MOST_RECENT",
          .override_linear_precision = OverrideLinearPrecision{.fprop = true}},
         variables);
  EXPECT_EQ(coded.margin, 1);
  EXPECT_EQ(coded.interval, 4);
  EXPECT_EQ(coded.fp8_format, "HYBRID");
  EXPECT_EQ(coded.amax_history_len, 8);
  EXPECT_EQ(coded.amax_compute_algo, "most_recent");
  EXPECT_EQ(coded.use_autocast_during_eval, false);
  EXPECT_EQ(
      coded.override_linear_precision,
      (OverrideLinearPrecision{.fprop = true}));
}

TEST(Fp8Recipe, ReadsTheSpellingsOfAcceleratesQuestions) {
  const TERecipeKwargs found =
      te({},
         {{"ACCELERATE_FP8_AMAX_HISTORY_LENGTH", "32"},
          {"ACCELERATE_FP8_AMAX_COMPUTE_ALGORITHM", "max"}});
  EXPECT_EQ(found.amax_history_len, 32);
  EXPECT_EQ(found.amax_compute_algo, "max");
}

// fp8_override_linear_precision has no variable: a launcher hands over the
// value of its flag or file.
TEST(Fp8Recipe, TakesOverridesFromAFileAsAList) {
  const auto with = [](const std::string& text) {
    Source file{Origin::file, {}};
    file.add("fp8_override_linear_precision", text, "file run.yaml");
    const std::array sources{std::move(file)};
    const Float8Request found = read_float8_request(
        TERecipeKwargs(), resolve(sources), Environment(Variables()));
    return std::get<TERecipeKwargs>(found.recipe).override_linear_precision;
  };
  EXPECT_EQ(
      with("[true, False, yes]"),
      (OverrideLinearPrecision{.fprop = true, .wgrad = true}));
  EXPECT_EQ(with("false,true,false"), (OverrideLinearPrecision{.dgrad = true}));
  expect_error<ConfigError>(
      [&] { static_cast<void>(with("true, false")); },
      "must be three booleans");
}

TEST(Fp8Recipe, HasE4M3InMxUnlessAFormatIsGiven) {
  EXPECT_EQ(te({.use_mxfp8_block_scaling = true}).fp8_format, "E4M3");
  EXPECT_EQ(
      te({.fp8_format = "HYBRID", .use_mxfp8_block_scaling = true}).fp8_format,
      "HYBRID");
  EXPECT_EQ(
      te({}, {{"ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING", "true"}})
          .use_mxfp8_block_scaling,
      true);
}

TEST(Fp8Recipe, RefusesContradictions) {
  expect_error<ConfigError>(
      [] { te({.amax_history_len = 16, .use_mxfp8_block_scaling = true}); },
      "amax_history_len and amax_compute_algo do not apply to MXFP8 block "
      "scaling");
  expect_error<ConfigError>(
      [] { te({.fp8_format = "E5M2", .use_mxfp8_block_scaling = true}); },
      "fp8_format must be E4M3 or HYBRID for MXFP8");
  expect_error<ConfigError>(
      [] { te({.fp8_format = "E3M4"}); }, "fp8_format is \"E3M4\"");
  expect_error<ConfigError>(
      [] { te({.amax_compute_algo = "mean"}); },
      "fp8_amax_compute_algo is \"mean\"");
  expect_error<ConfigError>(
      [] { te({.margin = -1}); },
      "margin of the fp8 recipe must be at least 0, but is -1");
  expect_error<ConfigError>(
      [] { te({.interval = 0}); },
      "interval of the fp8 recipe must be at least 1, but is 0");
  expect_error<ConfigError>(
      [] { te({.amax_history_len = 0}); },
      "amax_history_len of the fp8 recipe must be at least 1, but is 0");
  expect_error<ConfigError>(
      [] {
        requested(AORecipeKwargs{
            .config = Float8LinearConfig(), .pad_inner_dim = true});
      },
      "set them in the config");
}

TEST(Fp8Recipe, GathersInFloat8UnlessToldOtherwise) {
  const auto request = [](const FP8Recipe& recipe) {
    return requested(recipe);
  };
  const Float8LinearConfig own{.enable_fsdp_float8_all_gather = true};
  EXPECT_TRUE(gathers_in_float8(request(AORecipeKwargs())));
  EXPECT_TRUE(gathers_in_float8(request(AORecipeKwargs{.config = own})));
  EXPECT_FALSE(gathers_in_float8(
      request(AORecipeKwargs{.enable_fsdp_float8_all_gather = false})));
  EXPECT_FALSE(gathers_in_float8(
      request(AORecipeKwargs{.config = Float8LinearConfig()})));
  EXPECT_FALSE(gathers_in_float8(request(TERecipeKwargs())));
  EXPECT_FALSE(gathers_in_float8(requested(
      {}, {{"ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "false"}})));
  EXPECT_FALSE(request(AORecipeKwargs()).float8_all_gather_is_given);
  EXPECT_TRUE(
      request(AORecipeKwargs{.config = own}).float8_all_gather_is_given);
}

TEST(Fp8Recipe, RefusesToGatherRowsInFloat8) {
  const Float8LinearConfig config{
      .recipe = Float8LinearRecipeName::rowwise,
      .enable_fsdp_float8_all_gather = true};
  expect_error<ConfigError>(
      [&] { requested(AORecipeKwargs{.config = config}); },
      "enable_fsdp_float8_all_gather needs the tensorwise recipe");
}

TEST(Fp8Recipe, HasMsAmpsLevels) {
  const auto level_of = [](const std::optional<FP8Recipe>& recipe,
                           const Variables& variables = {}) {
    return std::get<MSAMPRecipeKwargs>(requested(recipe, variables).recipe)
        .opt_level;
  };
  EXPECT_EQ(level_of(MSAMPRecipeKwargs()), "O2");
  EXPECT_EQ(level_of(MSAMPRecipeKwargs{"o1"}), "O1");
  EXPECT_EQ(
      level_of(MSAMPRecipeKwargs(), {{"ACCELERATE_FP8_OPT_LEVEL", "O1"}}),
      "O1");
  EXPECT_EQ(
      level_of(
          MSAMPRecipeKwargs(), {{"ACCELERATE_FP8_OPTIMIZATION_LEVEL", "O1"}}),
      "O1");
  EXPECT_EQ(level_of({}, {{"ACCELERATE_FP8_BACKEND", "msamp"}}), "O2");
  EXPECT_EQ(level_of(FP8RecipeKwargs{{}, {}, "msamp"}), "O2");
  EXPECT_EQ(level_of(FP8RecipeKwargs{{}, "O1", "MSAMP"}), "O1");
  expect_error<ConfigError>(
      [] { requested(MSAMPRecipeKwargs{"O3"}); }, "fp8_opt_level is \"O3\"");
  expect_error<ConfigError>(
      [] { requested(FP8RecipeKwargs{{}, {}, "ao"}); },
      "backend of FP8RecipeKwargs must be TE or MSAMP, but is \"AO\"");
}

}  // namespace fp8_recipe_test
}  // namespace accelerate::detail
