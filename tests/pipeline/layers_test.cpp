#include <array>
#include <map>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/error.h>
#include <accelerate/pipeline_layers.h>

#include "pipeline/stages.h"
#include "support/expect_error.h"

namespace accelerate {
namespace layers_test {

using at::Tensor;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::UnorderedElementsAre;

struct SplitImpl : torch::nn::Module {
  std::tuple<Tensor, Tensor> forward(const Tensor& x) { return {x + 1, x * 2}; }
};
TORCH_MODULE(Split);

struct AddImpl : torch::nn::Module {
  Tensor forward(const std::tuple<Tensor, Tensor>& pair) {
    return std::get<0>(pair) + std::get<1>(pair);
  }
};
TORCH_MODULE(Add);

Tensor run(const PipelineLayers& layers, PipelineTensors values) {
  detail::PipelineValue value = detail::pipeline_value(std::move(values));
  for (const auto& layer : layers.layers()) value = layer.forward(value);
  return value.tensors.at(0);
}

TEST(PipelineLayers, AreTheModulesOfASequential) {
  const auto net = torch::nn::Sequential(Split(), Add(), torch::nn::ReLU());
  const PipelineLayers layers(net);
  ASSERT_EQ(layers.size(), 3);
  EXPECT_EQ(layers.layers()[1].name, "1");
  const Tensor x = torch::tensor({1.0, -2.0});
  EXPECT_TRUE(run(layers, {x}).equal(torch::tensor({4.0, 0.0})));
  PipelineLayers inner;
  inner.add_each("net", net);
  EXPECT_EQ(inner.layers()[2].name, "net.2");
}

TEST(PipelineLayers, AreModulesWithFunctions) {
  torch::nn::Linear linear(2, 2);
  torch::nn::ModuleList list(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  PipelineLayers layers;
  layers.add("first", linear)
      .add("both", [](Tensor x) { return std::vector<Tensor>{x, x + 1}; })
      .add(
          "sum",
          linear,
          [](torch::nn::LinearImpl& module, Tensor x, const Tensor& y) {
            return module.forward(x) + y;
          })
      .add_each<torch::nn::LinearImpl>("list", *list)
      .add("pair", Split())
      .add("add", Add())
      .add("all", [](const PipelineTensors& all) { return all[0] * 3; });
  EXPECT_EQ(layers.layers()[4].name, "list.1");
  const Tensor x = torch::randn({3, 2});
  Tensor h = linear(x);
  h = linear(h) + (h + 1);
  for (const auto& module : *list)
    h = module->as<torch::nn::LinearImpl>()->forward(h);
  EXPECT_TRUE(run(layers, {x}).equal((h + 1 + h * 2) * 3));
}

using TensorMap = std::map<std::string, Tensor>;

TEST(PipelineLayers, HandOnMapsAndOptionals) {
  PipelineLayers layers;
  layers
      .add(
          "map",
          [](Tensor x) {
            return TensorMap{{"hidden", x * 2}, {"a key: 2", x}};
          })
      .add(
          "both",
          [](const TensorMap& map, std::optional<Tensor> none) {
            EXPECT_FALSE(none.has_value());
            return std::pair(map.at("hidden") + map.at("a key: 2"), none);
          })
      .add(
          "optional",
          [](Tensor x, std::optional<Tensor> none) {
            EXPECT_FALSE(none.has_value());
            return std::tuple(x, std::optional<Tensor>(x + 1));
          })
      .add("last", [](Tensor x, const std::optional<Tensor>& y) {
        return x + *y;
      });
  // The second layer takes a map and an optional.
  PipelineLayers first;
  first.add("map", [](Tensor x) {
    return std::pair(
        TensorMap{{"hidden", x * 2}, {"a key: 2", x}}, std::optional<Tensor>());
  });
  detail::PipelineValue value =
      detail::pipeline_value(torch::tensor({1.0, 2.0}));
  value = first.layers()[0].forward(value);
  EXPECT_EQ(value.structure, "({8:a key: 2t6:hiddent}n)");
  for (std::size_t i = 1; i < layers.size(); ++i)
    value = layers.layers()[i].forward(value);
  EXPECT_TRUE(value.tensors[0].equal(torch::tensor({7.0, 13.0})));
  expect_error<ConfigError>(
      [&] {
        detail::PipelineValue map = layers.layers()[0].forward(
            detail::pipeline_value(torch::ones({2})));
        layers.layers()[1].forward(map);
      },
      "layer \"both\" takes several values, but gets a map; parameters with");
}

TEST(PipelineLayers, HandOnTuplesOfAnySize) {
  using Ten = std::array<Tensor, 10>;
  using Deep = std::tuple<
      std::vector<Tensor>,
      std::pair<TensorMap, Ten>,
      std::optional<std::vector<Tensor>>>;
  PipelineLayers layers;
  layers
      .add(
          "first",
          [](Tensor x) {
            Ten ten;
            ten.fill(x);
            return Deep{
                {x, x + 1}, {{{"k", x * 3}}, ten}, std::vector<Tensor>{x}};
          })
      .add("same", [](const Deep& deep) { return deep; })
      .add(
          "flat",
          [](const PipelineTensors& all) {
            EXPECT_EQ(all.size(), 14);
            std::array<Tensor, 2> two{all[1], all[2]};
            return std::tuple_cat(two, std::tuple(all[3], std::array{all[13]}));
          })
      .add("flattened", [](Tensor a, std::pair<Tensor, Tensor> b, Tensor c) {
        return a + b.first + b.second + c;
      });
  const Tensor x = torch::tensor({1.0});
  EXPECT_TRUE(run(layers, {x}).equal(torch::tensor({7.0})));
}

struct SixImpl : torch::nn::Module {
  using Out = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
  Out forward(const Tensor& x, const Tensor& y) { return {x, y, x, y, x, y}; }
};
TORCH_MODULE(Six);
struct ToMapImpl : torch::nn::Module {
  TensorMap forward(const SixImpl::Out& six) {
    return {{"a", std::get<0>(six)}, {"b", std::get<5>(six)}};
  }
};
TORCH_MODULE(ToMap);
struct ToVectorImpl : torch::nn::Module {
  std::vector<Tensor> forward(const TensorMap& map) {
    return {map.at("a"), map.at("b")};
  }
};
TORCH_MODULE(ToVector);
struct SumImpl : torch::nn::Module {
  Tensor forward(const std::vector<Tensor>& all) { return all[0] + all[1]; }
};
TORCH_MODULE(Sum);

TEST(PipelineLayers, HandOnWhatASequentialDoes) {
  const torch::nn::Sequential steps{Six(), ToMap(), ToVector(), Sum()};
  const PipelineLayers layers(steps);
  const Tensor x = torch::tensor({1.0, 2.0});
  EXPECT_TRUE(run(layers, {x, x * 10}).equal(torch::tensor({11.0, 22.0})));
}

TEST(PipelineLayers, RefuseWhatDoesNotFit) {
  const torch::nn::Linear linear(2, 2);
  expect_error<ConfigError>(
      [&] { PipelineLayers().add("a", linear).add("a", linear); },
      "layer 2 (\"a\") must have a name of its own, but one of that name was "
      "added before");
  expect_error<ConfigError>(
      [&] { PipelineLayers().add("", linear); }, "layer 1 (\"\") has no name");
  expect_error<ConfigError>(
      [&] { PipelineLayers().add("a", torch::nn::Linear(nullptr)); },
      "layer 1 (\"a\") is an empty module holder");
  expect_error<ConfigError>(
      [&] { PipelineLayers().uses("a", linear); },
      "uses(\"a\") comes before the layer");
  expect_error<ConfigError>(
      [&] {
        PipelineLayers layers;
        layers.add("a", linear);
        run(layers, {torch::ones({1, 2}), torch::ones({1, 2})});
      },
      "layer \"a\" takes 1 tensor, but gets 2");
  expect_error<ConfigError>(
      [&] {
        PipelineLayers layers;
        layers.add("a", Add());
        run(layers, {torch::ones({1, 2})});
      },
      "layer \"a\" takes 2 tensors, but gets 1");
}

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters())
    names.push_back(item.key());
  return names;
}

// An embedding whose weight the last stage also uses, a stage without
// parameters, and a parameter of the model itself.
struct TiedModel {
  torch::nn::Embedding embedding{5, 2};
  torch::nn::Linear linear{2, 2};
  torch::nn::BatchNorm1d norm{2};
  Tensor scale = torch::ones({2}).requires_grad_();
  PipelineLayers layers;

  TiedModel() {
    layers.add("embedding", embedding)
        .add("body.0", linear)
        .add("act", [](Tensor x) { return x.relu(); })
        .add("body.1", norm)
        .add(
            "head",
            [embedding = embedding, scale = scale](Tensor x) {
              return (x * scale).matmul(embedding->weight.t());
            })
        .uses("scale", scale)
        .uses("head.embedding", embedding);
  }
};

TEST(PipelineStages, HaveTheNamesOfTheWholeModel) {
  const TiedModel model;
  const auto& layers = model.layers.layers();
  const detail::PipelineStages first =
      detail::make_stages(layers, {0, 2, 3}, {.num_ranks = 3}, 0);
  EXPECT_THAT(
      names_of(*first.module),
      ElementsAre("embedding.weight", "body.0.weight", "body.0.bias"));
  EXPECT_THAT(
      first.elsewhere,
      UnorderedElementsAre(
          "body.1.weight",
          "body.1.bias",
          "body.1.running_mean",
          "body.1.running_var",
          "body.1.num_batches_tracked",
          "scale",
          "head.embedding.weight"));
  const detail::PipelineStages second =
      detail::make_stages(layers, {0, 2, 3}, {.num_ranks = 3}, 1);
  EXPECT_TRUE(second.module->parameters().empty());
  EXPECT_THAT(second.layers[1], ElementsAre("act"));
  EXPECT_FALSE(second.tied[0].tensor.defined());
  const detail::PipelineStages last =
      detail::make_stages(layers, {0, 2, 3}, {.num_ranks = 3}, 2);
  // Under its first name in the whole model.
  EXPECT_THAT(
      names_of(*last.module),
      ElementsAre(
          "scale",
          "embedding.weight",
          "body.1.weight",
          "body.1.bias",
          "head.embedding.weight"));
  ASSERT_EQ(last.tied.size(), 1);
  EXPECT_EQ(last.tied[0].name, "embedding.weight");
  EXPECT_THAT(last.tied[0].ranks, ElementsAre(0, 2));
  EXPECT_TRUE(last.tied[0].tensor.is_same(model.embedding->weight));
}

TEST(PipelineStages, FreeTheOthersMemory) {
  const TiedModel model;
  const detail::PipelineStages stage = detail::make_stages(
      model.layers.layers(), {0, 2, 3}, {.num_ranks = 3}, 2);
  detail::free_other_stages(model.layers.layers(), *stage.module);
  EXPECT_TRUE(model.linear->weight.is_meta());
  EXPECT_TRUE(model.linear->weight.requires_grad());
  EXPECT_EQ(model.linear->weight.sizes(), at::IntArrayRef({2, 2}));
  EXPECT_FALSE(model.embedding->weight.is_meta());
  EXPECT_FALSE(model.norm->running_mean.is_meta());
}

TEST(PipelineStages, CountParametersOnce) {
  const TiedModel model;
  EXPECT_THAT(
      detail::parameter_bytes(model.layers.layers()),
      ElementsAre(40, 24, 0, 16, 8));
  PipelineLayers plain;
  plain.add("a", [](Tensor x) { return x; }).add("b", [](Tensor x) {
    return x;
  });
  EXPECT_THAT(detail::parameter_bytes(plain.layers()), ElementsAre(1, 1));
}

TEST(PipelineStages, RefuseTwoModulesOfOneName) {
  PipelineLayers layers;
  layers.add("a", torch::nn::Linear(2, 2))
      .add("b", torch::nn::Linear(2, 2))
      .uses("a", torch::nn::Linear(2, 2));
  expect_error<ConfigError>(
      [&] { detail::make_stages(layers.layers(), {0}, {}, 0); },
      "two modules of the model are called \"a\"");
  PipelineLayers inner;
  inner.add("a", torch::nn::Linear(2, 2)).add("a.b", torch::nn::Linear(2, 2));
  expect_error<ConfigError>(
      [&] { detail::make_stages(inner.layers(), {0}, {}, 0); },
      "\"a\" is a layer, but names of other layers begin with it");
}

}  // namespace layers_test
}  // namespace accelerate
