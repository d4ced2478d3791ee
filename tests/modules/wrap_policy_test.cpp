#include "modules/wrap_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace wrap_policy_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = WrapPolicy::Kind;

ModuleNode
layer(const std::string& name, std::int64_t num_elements, std::uint64_t id) {
  ModuleNode module;
  module.name = name;
  module.class_name = "torch::nn::LinearImpl";
  module.parameters.push_back(
      {"weight",
       "float32",
       num_elements,
       4 * static_cast<std::uint64_t>(num_elements),
       id});
  return module;
}

// embed (8), blocks: [Block {a (10), b (20)}, Block {a (10), b (20)}]
ModuleNode net() {
  ModuleNode root;
  root.class_name = "Net";
  root.children.push_back(layer("embed", 8, 0));
  ModuleNode blocks;
  blocks.name = "blocks";
  blocks.class_name = "torch::nn::ModuleListImpl";
  for (std::uint64_t i = 0; i < 2; ++i) {
    ModuleNode block;
    block.name = std::to_string(i);
    block.class_name = "BlockImpl";
    block.children.push_back(layer("a", 10, 2 * i + 1));
    block.children.push_back(layer("b", 20, 2 * i + 2));
    blocks.children.push_back(block);
  }
  root.children.push_back(blocks);
  return root;
}

TEST(WrapPolicy, ChoosesElementsOfContainers) {
  EXPECT_THAT(wrapped_modules(net(), {}), ElementsAre("blocks.0", "blocks.1"));
  EXPECT_THAT(wrapped_modules(net(), {.kind = Kind::none}), IsEmpty());
}

TEST(WrapPolicy, ChoosesOutermostAttention) {
  ModuleNode root = net();
  std::vector<ModuleNode>& blocks = root.children[1].children;
  // One matches by name, the other by class; each contains another match.
  blocks[0].children[0].name = "self_attn";
  blocks[0].children[0].children.push_back(layer("attention", 3, 9));
  blocks[1].children[1].class_name = "models::FlashAttentionImpl";
  blocks[1].children[0].class_name = "attention::LinearImpl";
  ModuleNode empty;
  empty.name = "attention";
  root.children.push_back(empty);
  EXPECT_THAT(
      wrapped_modules(root, {.kind = Kind::attention}),
      ElementsAre("blocks.0.self_attn", "blocks.1.b"));
  EXPECT_THAT(wrapped_modules(net(), {.kind = Kind::attention}), IsEmpty());
}

TEST(WrapPolicy, MakesUnitsOfLeaves) {
  EXPECT_THAT(
      wrapped_modules(net(), {.leaf_class_names = {"Linear"}}),
      ElementsAre(
          "blocks.0.a",
          "blocks.0.b",
          "blocks.0",
          "blocks.1.a",
          "blocks.1.b",
          "blocks.1",
          "embed"));
  // Modules inside a leaf are not units.
  EXPECT_THAT(
      wrapped_modules(
          net(),
          {.kind = Kind::classes,
           .class_names = {"Linear"},
           .leaf_class_names = {"Block"}}),
      ElementsAre("embed", "blocks.0", "blocks.1"));
  testing::expect_error<ConfigError>(
      [] {
        static_cast<void>(
            wrapped_modules(net(), {.leaf_class_names = {"Moe"}}));
      },
      "transformer_moe_cls_names names \"Moe\", but no module");
}

TEST(WrapPolicy, ChoosesClasses) {
  const auto of = [](std::vector<std::string> classes) {
    return wrapped_modules(
        net(), {.kind = Kind::classes, .class_names = std::move(classes)});
  };
  EXPECT_THAT(of({"Block"}), ElementsAre("blocks.0", "blocks.1"));
  testing::expect_error<ConfigError>(
      [&] { of({"Block", "Blok"}); }, "names \"Blok\", but no module");
}

TEST(WrapPolicy, ChoosesByWhatChildrenLeave) {
  const auto of = [](std::int64_t least) {
    return wrapped_modules(
        net(), {.kind = Kind::remainder, .min_num_params = least});
  };
  EXPECT_THAT(of(20), ElementsAre("blocks.0.b", "blocks.1.b"));
  EXPECT_THAT(of(25), ElementsAre("blocks.0", "blocks.1"));
  EXPECT_THAT(of(0), IsEmpty());
}

TEST(WrapPolicy, ChoosesBySize) {
  EXPECT_THAT(
      wrapped_modules(net(), {.kind = Kind::size, .min_num_params = 10}),
      ElementsAre(
          "blocks.0.b", "blocks.0", "blocks.1.b", "blocks.1", "blocks"));
}

}  // namespace wrap_policy_test
}  // namespace accelerate::detail
