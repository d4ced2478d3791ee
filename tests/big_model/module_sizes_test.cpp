#include "big_model/plan/sized_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "big_model/module_trees.h"
#include "support/child_layers.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace module_sizes_test {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

TEST(ModuleSizes, CountsEveryTensorAndModule) {
  testing::TreeMaker make;
  const ModuleSizes sizes = module_sizes(make.model_for_test(), {});
  EXPECT_THAT(
      sizes,
      UnorderedElementsAre(
          std::pair("", 236.0),
          std::pair("linear1", 64.0),
          std::pair("linear1.weight", 48.0),
          std::pair("linear1.bias", 16.0),
          std::pair("batchnorm", 72.0),
          std::pair("batchnorm.weight", 16.0),
          std::pair("batchnorm.bias", 16.0),
          std::pair("batchnorm.running_mean", 16.0),
          std::pair("batchnorm.running_var", 16.0),
          std::pair("batchnorm.num_batches_tracked", 8.0),
          std::pair("linear2", 100.0),
          std::pair("linear2.weight", 80.0),
          std::pair("linear2.bias", 20.0)));
}

TEST(ModuleSizes, HalfPrecisionLeavesIntegersAlone) {
  testing::TreeMaker make;
  const ModuleSizes sizes =
      module_sizes(make.model_for_test(), {.dtype = "float16"});
  EXPECT_EQ(sizes.at(""), 122);
  EXPECT_EQ(sizes.at("linear1"), 32);
  EXPECT_EQ(sizes.at("batchnorm"), 40);
  EXPECT_EQ(sizes.at("linear2"), 50);
}

TEST(ModuleSizes, SpecialDtypesHoldWhateverTheTensorsOwn) {
  testing::TreeMaker make;
  const ModuleSizes sizes = module_sizes(
      make.model_for_test(),
      {.dtype = "int8", .special_dtypes = {{"linear1.weight", "float64"}}});
  EXPECT_EQ(sizes.at("linear1.weight"), 96);
  EXPECT_EQ(sizes.at("linear2.weight"), 20);
}

TEST(ModuleSizes, CountsBuffersByThemselves) {
  testing::TreeMaker make;
  const ModuleNode model = make.model_for_test();
  EXPECT_EQ(total_module_size(model, {.buffers_only = true}), 40);
  EXPECT_THAT(
      module_sizes(model, {.buffers_only = true}),
      ::testing::Not(::testing::Contains(::testing::Key("linear1"))));
}

TEST(ModuleSizes, CountsTiedParametersWhereTheyComeFirst) {
  testing::TreeMaker make;
  ModuleNode model = make.model_for_test();
  model.children[2].parameters[0].id = model.children[0].parameters[0].id;
  const ModuleSizes sizes = module_sizes(model, {});
  EXPECT_EQ(sizes.at("linear2"), 20);
  EXPECT_FALSE(sizes.contains("linear2.weight"));
  EXPECT_THAT(
      tied_parameters(model),
      ElementsAre(ElementsAre("linear1.weight", "linear2.weight")));
}

TEST(ModuleSizes, FindsLargestLayers) {
  testing::TreeMaker make;
  const ModuleNode model = make.sequential_of_three();
  const LargestLayerNames leaves = largest_layer(model, {}, {});
  EXPECT_EQ(leaves.num_bytes, 100);
  EXPECT_THAT(leaves.names, ElementsAre("0.linear2", "1.linear2", "2.linear2"));
  const LargestLayerNames whole = largest_layer(model, {}, {"ModelForTest"});
  EXPECT_EQ(whole.num_bytes, 236);
  EXPECT_THAT(whole.names, ElementsAre("0", "1", "2"));
}

TEST(ModuleSizes, CountsTheRootsOwnTensorsAsLayers) {
  testing::TreeMaker make;
  ModuleNode model = make.model_for_test();
  model.parameters.push_back(make.tensor("positions", 100));
  EXPECT_THAT(largest_layer(model, {}, {}).names, ElementsAre("positions"));
  EXPECT_THAT(
      testing::largest_child_layer(model, {}, {}).names,
      ElementsAre("linear2"));
}

TEST(ModuleSizes, RefusesUnknownDtypes) {
  testing::TreeMaker make;
  const ModuleNode model = make.model_for_test();
  testing::expect_error<ConfigError>(
      [&] { module_sizes(model, {.dtype = "floating"}); }, "floating");
}

}  // namespace module_sizes_test
}  // namespace accelerate::detail
