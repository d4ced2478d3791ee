#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/dynamo.h"
#include "engines/sources.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace dynamo_test {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::IsEmpty;
using testing::Variables;

Settings launched(const Variables& variables) {
  return testing::sources({}, variables).settings;
}

TEST(Dynamo, TakesTheCodeBeforeTheLauncher) {
  const Settings settings = launched(
      {{"ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"},
       {"ACCELERATE_DYNAMO_MODE", "reduce-overhead"},
       {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "true"}});
  const auto found =
      resolve_dynamo({.backend = "EAGER", .fullgraph = false}, settings);
  EXPECT_EQ(found.backend, "eager");
  EXPECT_EQ(found.mode, "reduce-overhead");
  EXPECT_EQ(found.fullgraph, false);
  EXPECT_EQ(found.use_regional_compilation, false);
  EXPECT_FALSE(found.dynamic);
  EXPECT_EQ(resolve_dynamo({}, settings).backend, "inductor");
}

TEST(Dynamo, LeavesShapesOpenUnlessTheyAreGiven) {
  EXPECT_EQ(
      resolve_dynamo({}, launched({{"ACCELERATE_DYNAMO_USE_DYNAMIC", "1"}}))
          .dynamic,
      true);
  EXPECT_EQ(
      resolve_dynamo(
          {.dynamic = false},
          launched({{"ACCELERATE_DYNAMO_USE_DYNAMIC", "1"}}))
          .dynamic,
      false);
}

TEST(Dynamo, RefusesUnknownBackends) {
  expect_error<ConfigError>(
      [] { resolve_dynamo({.backend = "nonsense"}, launched({})); },
      "dynamo_backend is \"nonsense\"");
}

TEST(Dynamo, ListsWhatItIsAskedFor) {
  const TorchDynamoOptions options{.backend = "inductor", .mode = "default"};
  EXPECT_THAT(
      names_of(dynamo_without_effect(&options, launched({}))),
      ElementsAre("dynamo_backend", "dynamo_mode"));
  const auto found = dynamo_without_effect(
      nullptr,
      launched(
          {{"ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"},
           {"ACCELERATE_DYNAMO_USE_DYNAMIC", "true"}}));
  EXPECT_THAT(
      names_of(found), ElementsAre("dynamo_backend", "dynamo_use_dynamic"));
  EXPECT_EQ(found[0].origin, "environment variable ACCELERATE_DYNAMO_BACKEND");
}

TEST(Dynamo, DisabledCompilesNothingAsAsked) {
  const TorchDynamoOptions options{
      .backend = "inductor", .mode = "max-autotune", .disable = true};
  EXPECT_THAT(dynamo_without_effect(&options, launched({})), IsEmpty());
  expect_error<ConfigError>(
      [] {
        const TorchDynamoOptions wrong{.backend = "nonsense", .disable = true};
        dynamo_without_effect(&wrong, launched({}));
      },
      "dynamo_backend is \"nonsense\"");
}

TEST(Dynamo, ListsEveryOptionOfCode) {
  const TorchDynamoOptions options{
      .backend = "eager",
      .mode = "default",
      .fullgraph = false,
      .dynamic = false,
      .use_regional_compilation = false};
  const auto found = dynamo_without_effect(&options, launched({}));
  EXPECT_THAT(
      names_of(found),
      ElementsAre(
          "dynamo_backend",
          "dynamo_mode",
          "dynamo_use_fullgraph",
          "dynamo_use_dynamic",
          "dynamo_use_regional_compilation"));
  for (const IgnoredSetting& setting : found) EXPECT_EQ(setting.origin, "code");
}

// Accelerate's launcher always gives a backend and a mode.
TEST(Dynamo, ListsNothingIfNothingIsCompiled) {
  const Settings no = launched(
      {{"ACCELERATE_DYNAMO_BACKEND", "NO"},
       {"ACCELERATE_DYNAMO_MODE", "default"}});
  EXPECT_THAT(dynamo_without_effect(nullptr, no), IsEmpty());
  const TorchDynamoOptions options{.backend = "no"};
  EXPECT_THAT(dynamo_without_effect(&options, no), IsEmpty());
}

}  // namespace dynamo_test
}  // namespace accelerate::detail
