#include "format/tensors/model_shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <limits>
#include <numeric>
#include <set>

namespace accelerate::detail {
namespace model_shards_test {

using ::testing::ElementsAre;

TEST(ModelShards, HaveNoIndexForOneFile) {
  const ModelShards shards =
      split_model({{"a", 4, 0}, {"b", 4, 1}}, 8, ModelFormat::safetensors);
  ASSERT_EQ(shards.files.size(), 1U);
  EXPECT_EQ(shards.files[0].name, "model.safetensors");
  EXPECT_THAT(shards.files[0].tensors, ElementsAre("a", "b"));
  EXPECT_FALSE(shards.index);
}

TEST(ModelShards, OpenANewFileWhenTheNextDoesNotFit) {
  const ModelShards shards = split_model(
      {{"a", 6, 0}, {"large", 20, 1}, {"b", 2, 2}, {"c", 1, 3}},
      8,
      ModelFormat::torch);
  ASSERT_EQ(shards.files.size(), 3U);
  EXPECT_EQ(shards.files[0].name, "pytorch_model-00001-of-00003.bin");
  EXPECT_THAT(shards.files[0].tensors, ElementsAre("large"));
  EXPECT_THAT(shards.files[1].tensors, ElementsAre("a", "b"));
  EXPECT_THAT(shards.files[2].tensors, ElementsAre("c"));
  EXPECT_EQ(shards.total_bytes, 29U);
  EXPECT_EQ(shards.index->first, "pytorch_model.bin.index.json");
  EXPECT_EQ(
      shards.index->second,
      R"({
  "metadata": {
    "total_size": 29
  },
  "weight_map": {
    "a": "pytorch_model-00002-of-00003.bin",
    "b": "pytorch_model-00002-of-00003.bin",
    "c": "pytorch_model-00003-of-00003.bin",
    "large": "pytorch_model-00001-of-00003.bin"
  }
}
)");
}

TEST(ModelShards, HoldSharedTensorsOnce) {
  const std::vector<ShardEntry> tensors{
      {"a", 4, 0}, {"b", 4, 1}, {"tied", 4, 0}};
  const ModelShards safe = split_model(tensors, 4, ModelFormat::safetensors);
  EXPECT_THAT(safe.dropped, ElementsAre("tied"));
  EXPECT_EQ(safe.total_bytes, 8U);
  const ModelShards torch = split_model(tensors, 4, ModelFormat::torch);
  EXPECT_TRUE(torch.dropped.empty());
  EXPECT_THAT(torch.files[0].tensors, ElementsAre("a", "tied"));
}

TEST(ModelShards, AreOneEmptyFileForNoTensors) {
  const ModelShards shards = split_model({}, 4, ModelFormat::safetensors);
  ASSERT_EQ(shards.files.size(), 1U);
  EXPECT_TRUE(shards.files[0].tensors.empty());
}

TEST(ModelShards, RecognizeTheirFiles) {
  using enum ModelFormat;
  EXPECT_TRUE(is_model_file("model.safetensors", safetensors));
  EXPECT_TRUE(is_model_file("model-00001-of-00002.safetensors", safetensors));
  EXPECT_TRUE(is_model_file("model.safetensors.index.json", safetensors));
  EXPECT_FALSE(is_model_file("model-1-of-2.safetensors", safetensors));
  EXPECT_FALSE(is_model_file("model_1.safetensors", safetensors));
  EXPECT_FALSE(
      is_model_file("my-model-00001-of-00002.safetensors", safetensors));
  EXPECT_FALSE(is_model_file("model.safetensors", torch));
  EXPECT_TRUE(is_model_file("pytorch_model-00001-of-00002.bin", torch));
}

TEST(ModelShards, LoseNothingAndKeepTheBound) {
  EXPECT_TRUE(rc::check([] {
    const auto sizes = *rc::gen::container<std::vector<std::uint64_t>>(
        rc::gen::inRange<std::uint64_t>(0, 30));
    const auto max_bytes = *rc::gen::inRange<std::uint64_t>(1, 40);
    std::vector<ShardEntry> tensors;
    std::map<std::string, std::uint64_t> bytes;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::string name = "t";
      name += std::to_string(i);
      bytes[name] = sizes[i];
      tensors.push_back({name, sizes[i], static_cast<std::int64_t>(i)});
    }
    const ModelShards shards =
        split_model(tensors, max_bytes, ModelFormat::safetensors);
    std::set<std::string> seen;
    for (const ModelShards::File& file : shards.files) {
      std::uint64_t of_file = 0;
      for (const std::string& name : file.tensors) {
        RC_ASSERT(seen.insert(name).second);
        of_file += bytes.at(name);
      }
      RC_ASSERT(of_file <= max_bytes || file.tensors.size() == 1);
    }
    RC_ASSERT(seen.size() == sizes.size());
    RC_ASSERT(
        shards.total_bytes ==
        std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}));
  }));
}

}  // namespace model_shards_test
}  // namespace accelerate::detail
