#include "modules/module_tree.h"

#include <gtest/gtest.h>

namespace accelerate::detail {
namespace module_tree_test {

ModuleNode node(const std::string& name, const std::string& class_name) {
  ModuleNode module;
  module.name = name;
  module.class_name = class_name;
  return module;
}

TEST(ModuleTree, CountsBytesAndParameters) {
  ModuleNode root = node("", "Net");
  root.parameters.push_back({"weight", "float32", 10, 40, 0});
  root.buffers.push_back({"steps", "int64", 1, 8, 1});
  root.children.push_back(node("tied", "Linear"));
  root.children[0].parameters.push_back({"weight", "float32", 10, 40, 0});
  root.children[0].parameters.push_back({"bias", "bfloat16", 2, 4, 2});
  EXPECT_EQ(total_bytes(root), 92u);
  // A shared parameter counts once.
  EXPECT_EQ(num_parameters(root), 12);
}

TEST(ModuleTree, RecognisesClasses) {
  EXPECT_TRUE(is_class(node("", "Block"), "Block"));
  EXPECT_TRUE(is_class(node("", "models::BlockImpl"), "Block"));
  EXPECT_TRUE(is_class(node("", "BlockImpl"), "Block"));
  EXPECT_FALSE(is_class(node("", "MyBlock"), "Block"));
  EXPECT_TRUE(is_one_of(node("", "Block"), {"Head", "Block"}));
  EXPECT_FALSE(is_one_of(node("", "Block"), {}));
}

TEST(ModuleTree, NamesChildren) {
  EXPECT_EQ(dotted_name("", "0"), "0");
  EXPECT_EQ(dotted_name("layers", "0"), "layers.0");
}

}  // namespace module_tree_test
}  // namespace accelerate::detail
