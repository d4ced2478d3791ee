#include "planning/model_tree.h"

#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>
#include <accelerate/safetensors.h>

#include "base/text/text.h"
#include "planning/memory_estimate.h"
#include "planning/model_config.h"
#include "planning/model_tree_builder.h"
#include "planning/training_memory.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace model_tree_test {

using testing::expect_error;
using testing::TemporaryDirectory;

class ModelTrees : public ::testing::Test {
 protected:
  // Reads a config.json with this text.
  ModelTree config(const std::string& text) const {
    std::ofstream(directory_ / "config.json") << text;
    return read_model_tree(directory_ / "config.json");
  }
  void refuse(const std::string& text, const std::string& phrase) const {
    expect_error<ConfigError>([&] { static_cast<void>(config(text)); }, phrase);
  }
  // Reads a safetensors file of one-byte tensors.
  ModelTree weights(const std::vector<std::string>& names) const {
    std::vector<safetensors::Declaration> tensors;
    for (const std::string& name : names) {
      tensors.push_back({name, safetensors::Dtype::U8, {1}});
    }
    safetensors::Writer writer(directory_ / "x.safetensors", tensors);
    writer.write(std::vector<std::byte>(names.size()));
    writer.finish();
    return read_model_tree(directory_ / "x.safetensors");
  }

  TemporaryDirectory directory_;
};

std::string llama(const std::string& changes) {
  return R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 10)" +
      changes + "}";
}

TEST_F(ModelTrees, CountConfigs) {
  // Embedding and head 80 each; a layer has 4 projections of 64, 3 of 128 and
  // 2 norms of 8; the last norm has 8.
  const ModelTree model = config(llama(""));
  EXPECT_EQ(model.num_parameters, 160U + 2U * (256 + 384 + 16) + 8U);
  ASSERT_TRUE(model.transformer);
  EXPECT_EQ(model.transformer->num_layers, 2);
  EXPECT_EQ(
      config(llama(R"(, "tie_word_embeddings": true, "head_dim": null)"))
          .num_parameters,
      model.num_parameters - 80);
  // The last of two equal keys wins.
  EXPECT_EQ(config(llama(R"(, "num_hidden_layers": 0)")).num_parameters, 168U);
}

TEST_F(ModelTrees, NameWhatIsWrongInConfigs) {
  const auto changed = [&](const std::string& change,
                           const std::string& phrase) {
    refuse(llama(", " + change), phrase);
  };
  changed(
      R"("num_attention_heads": 0)",
      "config.json: num_attention_heads is 0, not a whole number from 1 to "
      "2147483648");
  changed(R"("num_attention_heads": -1)", "is -1, not a whole number");
  changed(
      R"("hidden_size": -9223372036854775808, "num_attention_heads": -1)",
      "hidden_size is -9223372036854775808, not");
  changed(R"("hidden_size": 18446744073709551615)", "not a whole number");
  changed(R"("hidden_size": 8.5)", "hidden_size is 8.5, not a whole number");
  changed(R"("hidden_size": "8")", R"(hidden_size is "8", not)");
  changed(
      R"("num_hidden_layers": 1000000)",
      "num_hidden_layers is 1000000, not a whole number from 0 to 10000");
  changed(R"("tie_word_embeddings": "yes")", "not true or false");
  changed(R"("attention_bias": 1)", "attention_bias is 1, not true or false");
  changed(R"("num_key_value_heads": [])", "num_key_value_heads is [], not");
  changed(R"("vocab_size": null)", "has no vocab_size");
  changed(R"("model_type": 3)", "model_type is 3, not a string");
  changed(R"("model_type": "\u001b[2J")", R"(is "\x1b[2J", but must be bert)");
  changed(
      R"("hidden_size": 2147483648, "vocab_size": 2147483648)",
      "exceeds 2^56 elements");
  refuse("[1]", "is not a JSON object");
  refuse("{\n\"a\": x}", "is not a JSON object: line 2, column 6: syntax");
  refuse(std::string(100'000, '['), "nested 100000 deep, but only 512");
}

TEST_F(ModelTrees, AreBuiltForTheMostLayers) {
  const ModelTree model =
      config(llama(format(R"(, "num_hidden_layers": {})", kMostLayers)));
  EXPECT_EQ(model.num_parameters, 168U + 10'000U * 656U);
}

TEST_F(ModelTrees, IgnoreAStrangeConfigBesideWeights) {
  std::ofstream(directory_ / "config.json")
      << R"({"num_hidden_layers": "x", "hidden_size": [], "n_head": -1})";
  const ModelTree model = weights({"a.b"});
  EXPECT_EQ(model.num_parameters, 1U);
  EXPECT_FALSE(model.transformer);
}

TEST_F(ModelTrees, GroupTensorsByTheirNames) {
  const ModelTree model = weights({"a.b.w", "a.b.v", "a.c.w", "d", "a-b.w"});
  ASSERT_EQ(model.root.children.size(), 2U);
  EXPECT_EQ(model.root.parameters.size(), 1U);
  EXPECT_EQ(model.root.children[0].name, "a-b");
  const ModuleNode& a = model.root.children[1];
  EXPECT_EQ(a.name, "a");
  ASSERT_EQ(a.children.size(), 2U);
  EXPECT_EQ(a.children[0].parameters.size(), 2U);
  const LargestLayers largest = largest_layers(model.root, model.no_split);
  EXPECT_EQ(largest.num_bytes, 8U);
  EXPECT_EQ(largest.names, std::vector<std::string>{"a.b"});
}

TEST_F(ModelTrees, TakeManyTensorsOfOneModule) {
  constexpr int kMany = 100'000;
  std::vector<std::string> flat, experts;
  for (int i = 0; i < kMany; ++i) {
    flat.push_back(format("w{}", i));
    experts.push_back(format("experts.{}.weight", i));
  }
  EXPECT_EQ(weights(flat).root.parameters.size(), std::size_t{kMany});
  const ModelTree model = weights(experts);
  ASSERT_EQ(model.root.children.size(), 1U);
  EXPECT_EQ(model.root.children[0].children.size(), std::size_t{kMany});
  EXPECT_EQ(
      largest_layers(model.root, model.no_split).names.size(),
      std::size_t{kMany});
}

TEST_F(ModelTrees, RefuseDeepNames) {
  const auto name_of = [](std::size_t num_modules) {
    std::string name;
    for (std::size_t i = 0; i < num_modules; ++i) name += "m.";
    return name + "w";
  };
  EXPECT_EQ(weights({name_of(128)}).num_parameters, 1U);
  expect_error<ConfigError>(
      [&] { static_cast<void>(weights({name_of(129)})); },
      "is inside 129 modules, but at most 128 are read");
  expect_error<ConfigError>(
      [&] { static_cast<void>(weights({std::string(2'000'000, '.')})); },
      "x.safetensors: a tensor in .....");
}

TEST(ModelTreeBuilder, RefusesMoreModulesThanItCounts) {
  ModelTreeBuilder build("x");
  expect_error<ConfigError>(
      [&] {
        for (std::size_t i = 0; i <= ModelTreeBuilder::kMostModules; ++i) {
          build.add_module(std::to_string(i), "");
        }
      },
      "more than 2000000 modules");
}

TEST(ModelTreeBuilder, BuildsTheSameTreeInAnyOrder) {
  EXPECT_TRUE(rc::check([] {
    const auto paths =
        *rc::gen::container<std::set<std::string>>(rc::gen::nonEmpty(
            rc::gen::container<std::string>(rc::gen::element('a', 'b', '.'))));
    ModelTreeBuilder sorted("x"), reversed("x");
    for (const std::string& path : paths) sorted.add_parameter(path, {2});
    for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
      reversed.add_parameter(*path, {2});
    }
    const ModuleNode one = sorted.finish(), two = reversed.finish();
    RC_ASSERT(num_parameters(one) == std::int64_t(2 * paths.size()));
    RC_ASSERT(num_parameters(two) == num_parameters(one));
    const auto names = [](const ModuleNode& root) {
      std::multiset<std::string> found;
      const auto visit = [&](const auto& self,
                             const ModuleNode& module,
                             const std::string& path) -> void {
        for (const ModuleTensor& tensor : module.parameters) {
          found.insert(path + tensor.name);
        }
        for (const ModuleNode& child : module.children) {
          self(self, child, path + child.name + ".");
        }
      };
      visit(visit, root, "");
      return found;
    };
    RC_ASSERT(names(one) == names(two));
    // A leading dot makes a nameless module at the root; no name is lost.
    RC_ASSERT(names(one).size() == paths.size());
  }));
}

TEST(TrainingMemoryTest, StaysBelow64BitsForAnySequence) {
  ModelTree model;
  model.transformer = TransformerShape{10'000, 1, 1 << 30, 1 << 30};
  TrainingPlan plan;
  plan.sequence_length = std::numeric_limits<std::int64_t>::max();
  plan.batch_size = plan.sequence_length;
  EXPECT_EQ(
      training_memory(model, 0, plan).activations, std::uint64_t{1} << 62U);
}

TEST(TrainingMemoryTest, IsTheBuffersAndUnitsOfWhatIsOnDisk) {
  ModelTree model;
  model.num_parameters = 1000;
  const TrainingPlan in_memory{
      .weights_dtype = "bfloat16", .num_shards = 2, .disk_buffers = 100};
  TrainingPlan plan = in_memory;
  plan.optimizer_is_on_disk = true;
  const TrainingMemory optimizer = training_memory(model, 40, plan);
  EXPECT_EQ(optimizer.weights, 1000U);
  EXPECT_EQ(optimizer.masters + optimizer.gradients + optimizer.optimizer, 0U);
  EXPECT_EQ(optimizer.on_disk, 500U * (4 + 2 + 8));
  EXPECT_EQ(optimizer.gathered, 3U * 20);
  EXPECT_EQ(optimizer.total(), 1000U + 3 * 20 + 100);
  plan.weights_are_on_disk = true;
  plan.num_shards = 1;
  const TrainingMemory all = training_memory(model, 40, plan);
  EXPECT_EQ(all.on_disk, 1000U * (2 + 4 + 2 + 8));
  // Each of the two files has buffers.
  EXPECT_EQ(all.total(), 3U * 20 + 2 * 100);
  plan.disk_buffers = std::nullopt;
  EXPECT_EQ(training_memory(model, 40, plan).buffers, all.on_disk);
  EXPECT_EQ(training_memory(model, 40, in_memory).buffers, 0U);
}

TEST(TrainingMemoryTest, IsReadAndWrittenInEveryStep) {
  ModelTree model;
  model.num_parameters = 1000;
  TrainingPlan plan{.weights_dtype = "bfloat16", .accumulation_steps = 3};
  EXPECT_EQ(disk_traffic(model, plan).read, 0U);
  plan.weights_are_on_disk = true;
  EXPECT_EQ(disk_traffic(model, plan).read, 2000U * 2 * 3);
  EXPECT_EQ(disk_traffic(model, plan).written, 2000U);
  plan.optimizer_is_on_disk = true;
  const std::uint64_t state = 4000 + 8000, gradients = 2000;
  EXPECT_EQ(disk_traffic(model, plan).read, 2000U * 6 + state + gradients * 3);
  EXPECT_EQ(disk_traffic(model, plan).written, 2000U + state + gradients * 3);
  // Weights in fp32 are read by the step as well.
  plan = {.weights_are_on_disk = true};
  EXPECT_EQ(disk_traffic(model, plan).read, 4000U * 3);
}

}  // namespace model_tree_test
}  // namespace accelerate::detail
