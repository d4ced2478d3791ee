#include "params/model_modules.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace accelerate::detail {
namespace model_modules_test {

struct HolderImpl : torch::nn::Module {
  explicit HolderImpl(const at::Tensor& weight) {
    register_parameter("weight", weight);
    register_parameter("bias", torch::zeros({3}));
  }
};

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    const at::Tensor shared = torch::zeros({3, 2});
    register_module("first", std::make_shared<HolderImpl>(shared));
    register_module("second", std::make_shared<HolderImpl>(shared));
    register_buffer("steps", torch::zeros({1}, torch::kLong));
    register_parameter("scale", torch::zeros({4}, torch::kBFloat16));
  }
};

TEST(ModelModules, HasTensorsWithBytesAndDtypes) {
  const ModuleNode root = module_tree(*std::make_shared<TiedImpl>());
  EXPECT_TRUE(is_class(root, "Tied"));
  ASSERT_EQ(root.parameters.size(), 1u);
  EXPECT_EQ(root.parameters[0].name, "scale");
  EXPECT_EQ(root.parameters[0].dtype, "bfloat16");
  EXPECT_EQ(root.parameters[0].num_bytes, 8u);
  ASSERT_EQ(root.buffers.size(), 1u);
  EXPECT_EQ(root.buffers[0].dtype, "int64");
  EXPECT_EQ(root.buffers[0].num_bytes, 8u);
  ASSERT_EQ(root.children.size(), 2u);
  EXPECT_EQ(root.children[0].name, "first");
  EXPECT_TRUE(is_class(root.children[0], "Holder"));
}

TEST(ModelModules, GivesSharedParametersOneId) {
  const ModuleNode root = module_tree(*std::make_shared<TiedImpl>());
  const ModuleTensor& weight = root.children[0].parameters[0];
  ASSERT_EQ(root.children[1].parameters.size(), 2u);
  EXPECT_EQ(weight.id, root.children[1].parameters[0].id);
  EXPECT_NE(weight.id, root.children[0].parameters[1].id);
  // 4 for the scale, 6 for the shared weight, 3 for each of two biases.
  EXPECT_EQ(num_parameters(root), 16);
}

}  // namespace model_modules_test
}  // namespace accelerate::detail
