#include "big_model/plan/check_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "big_model/module_trees.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace check_map_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CheckMap, FindsTensorsWithoutAPlace) {
  testing::TreeMaker make;
  const ModuleNode model = make.model_for_test();
  const DeviceMap map{
      {"linear1", 0}, {"batchnorm.weight", 0}, {"linear2", "disk"}};
  EXPECT_THAT(
      find_complaints(model, map).missing,
      ElementsAre(
          "batchnorm.bias",
          "batchnorm.running_mean",
          "batchnorm.running_var",
          "batchnorm.num_batches_tracked"));
  testing::expect_error<ConfigError>(
      [&] { require_complete_map(model, map); },
      "gives no place to batchnorm.bias, batchnorm.running_mean");
}

TEST(CheckMap, NeedsNoPlaceForBuffersThatAreNotSaved) {
  testing::TreeMaker make;
  ModuleNode model = make.model_for_test();
  for (ModuleTensor& buffer : model.children[1].buffers)
    buffer.is_persistent = false;
  const DeviceMap map{
      {"linear1", 0},
      {"batchnorm.weight", 0},
      {"batchnorm.bias", 0},
      {"linear2", 0}};
  EXPECT_THAT(find_complaints(model, map).missing, IsEmpty());
}

TEST(CheckMap, WarnsOfEntriesThatNameNothing) {
  testing::TreeMaker make;
  const ModuleNode model = make.model_for_test();
  EXPECT_EQ(require_complete_map(model, {{"", 0}, {"linear2", 1}}), "");
  EXPECT_THAT(
      require_complete_map(model, {{"", 0}, {"linear3", 1}}),
      HasSubstr("not modules of the model: linear3"));
}

}  // namespace check_map_test
}  // namespace accelerate::detail
