// Adapters of hand-written modules.
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <accelerate/adapters.h>
#include <accelerate/big_model.h>
#include <accelerate/error.h>
#include <accelerate/fp8.h>
#include <accelerate/quantized_model.h>
#include <accelerate/weights.h>

#include "adapters/mixed_net.h"
#include "gate/watched_tensor.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::adapters_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAre;

MixedNet made_net(bool trains = false) {
  torch::manual_seed(0);
  MixedNet net;
  net->train(trains);
  return net;
}

MixedNet adapted_net(const AdapterOptions& options, bool trains = false) {
  MixedNet net = made_net(trains);
  add_adapters(net, options);
  fill_adapters(*net);
  return net;
}

std::vector<std::string> names_of(
    const torch::nn::Module& net,
    bool only_trained = true) {
  std::vector<std::string> names;
  for (const auto& item : net.named_parameters())
    if (item.value().requires_grad() || !only_trained)
      names.push_back(item.key());
  return names;
}

double difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

const AdapterOptions kFc{.rank = 2, .alpha = 4, .target_modules = {"fc"}};
const AdapterOptions kAllKinds{.rank = 4, .alpha = 8, .target_modules = kKinds};

TEST(Adapters, HaveTheNamesOfPeftAndAloneAreTrained) {
  MixedNet net = made_net();
  const void* const memory = net->fc->weight.data_ptr();
  EXPECT_THAT(
      add_adapters(net, {.rank = 2, .target_modules = {"fc", "embed"}}),
      ElementsAre("embed", "fc"));
  EXPECT_EQ(net->fc->weight.data_ptr(), memory);
  EXPECT_THAT(
      names_of(*net),
      UnorderedElementsAre(
          "embed.lora_embedding_A.default",
          "embed.lora_embedding_B.default",
          "fc.lora_A.default.weight",
          "fc.lora_B.default.weight"));
  EXPECT_THAT(
      names_of(*net, /*only_trained=*/false),
      IsSupersetOf({"fc.weight", "fc.bias", "embed.weight"}));
}

TEST(Adapters, ChangeNothingBeforeTheyAreTrained) {
  for (const bool use_dora : {false, true}) {
    MixedNet net = made_net();
    const torch::Tensor before = net->forward(some_ids());
    AdapterOptions options = kAllKinds;
    options.use_dora = use_dora;
    add_adapters(net, options);
    EXPECT_LE(
        difference(net->forward(some_ids()), before), use_dora ? 1e-6 : 0.0);
  }
}

TEST(Adapters, MayBeginWithAnEffect) {
  MixedNet net = made_net();
  const torch::Tensor before = net->forward(some_ids());
  AdapterOptions options = kAllKinds;
  options.init = AdapterInit::gaussian;
  add_adapters(net, options);
  EXPECT_EQ(difference(net->forward(some_ids()), before), 0);
  options.init = AdapterInit::random;
  add_adapters(net, options, "random");
  set_adapter(net, "random");
  EXPECT_GT(difference(net->forward(some_ids()), before), 1e-4);
}

TEST(Adapters, LeaveTheBaseWithoutGradients) {
  MixedNet net = adapted_net(kAllKinds, /*trains=*/true);
  net->forward(some_ids()).square().mean().backward();
  for (const auto& item : net->named_parameters()) {
    const bool is_adapter = item.key().find("lora_") != std::string::npos;
    EXPECT_EQ(item.value().grad().defined(), is_adapter) << item.key();
  }
}

TEST(Adapters, ActOnAllInputsOfALinearLayer) {
  torch::nn::Linear fc(4, 3);
  add_adapters(fc, {.rank = 2, .target_modules = ".*"});
  fill_adapters(*fc);
  const auto named = fc->named_parameters();
  const torch::Tensor weight = fc->weight +
      4 * named["lora_B.default.weight"].mm(named["lora_A.default.weight"]);
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
           {4}, {5, 4}, {2, 5, 4}, {2, 1, 5, 4}}) {
    const torch::Tensor x = torch::randn(sizes);
    EXPECT_LE(
        difference(fc->forward(x), torch::linear(x, weight, fc->bias)), 2e-6);
  }
}

TEST(Adapters, DropInputsInTrainingOnly) {
  AdapterOptions options = kFc;
  options.dropout = 0.5;
  MixedNet net = adapted_net(options);
  const auto output = [&] { return net->forward(some_ids()); };
  EXPECT_EQ(difference(output(), output()), 0);
  net->train();
  EXPECT_GT(difference(output(), output()), 0);
  net->fc->eval();
  EXPECT_EQ(difference(output(), output()), 0);
}

TEST(Adapters, AreSwitchedAddedAndDisabled) {
  MixedNet net = made_net();
  const torch::Tensor base = net->head(torch::ones({2, 8}));
  const auto output = [&] { return net->head(torch::ones({2, 8})); };
  for (const char* const name : {"one", "two"})
    add_adapters(net, {.rank = 2, .target_modules = {"head"}}, name);
  fill_adapters(*net);
  EXPECT_THAT(adapter_names(net), ElementsAre("one", "two"));
  EXPECT_THAT(active_adapters(net), ElementsAre("one"));
  const torch::Tensor one = output() - base;
  EXPECT_THAT(
      names_of(*net),
      UnorderedElementsAre("head.lora_A.one.weight", "head.lora_B.one.weight"));
  set_adapter(net, "two");
  const torch::Tensor two = output() - base;
  EXPECT_THAT(
      names_of(*net),
      UnorderedElementsAre("head.lora_A.two.weight", "head.lora_B.two.weight"));
  EXPECT_GT(difference(one, two), 1e-3);
  set_adapter(net, std::vector<std::string>{"one", "two"});
  EXPECT_LE(difference(output() - base, one + two), 2e-6);
  {
    const DisableAdapters off(net);
    const DisableAdapters still_off(net);
    EXPECT_EQ(difference(output(), base), 0);
  }
  EXPECT_LE(difference(output() - base, one + two), 2e-6);
  delete_adapter(net, "two");
  EXPECT_LE(difference(output() - base, one), 2e-6);
  unload_adapters(net);
  EXPECT_EQ(difference(output(), base), 0);
  EXPECT_THAT(adapter_names(net), IsEmpty());
}

TEST(Adapters, LeaveTheModelAsItWasWhenTheyAreUnloaded) {
  MixedNet net = made_net();
  const auto before = names_of(*net, false);
  const torch::Tensor output = net->forward(some_ids());
  AdapterOptions options = kAllKinds;
  options.use_dora = true;
  options.modules_to_save = {"head"};
  add_adapters(net, options);
  fill_adapters(*net);
  unload_adapters(net);
  EXPECT_EQ(names_of(*net, false), before);
  EXPECT_EQ(difference(net->forward(some_ids()), output), 0);
  for (const torch::Tensor& each : net->parameters())
    EXPECT_FALSE(detail::is_watched(each));
}

TEST(Adapters, FollowTheModelToAnotherDtype) {
  AdapterOptions options = kAllKinds;
  options.modules_to_save = {"head"};
  MixedNet net = adapted_net(options);
  const torch::Tensor output = net->forward(some_ids());
  net->to(torch::kDouble);
  const torch::Tensor wide = net->forward(some_ids());
  EXPECT_EQ(wide.scalar_type(), torch::kDouble);
  EXPECT_LE(difference(wide, output), 1e-5);
  const DisableAdapters off(net);
  EXPECT_GT(difference(net->forward(some_ids()), output), 1e-3);
}

TEST(Adapters, ActOnCastsOfTheWeight) {
  torch::nn::Linear fc(4, 4);
  add_adapters(fc, {.rank = 2, .target_modules = ".*"});
  fill_adapters(*fc);
  const torch::Tensor x = torch::randn({3, 4});
  EXPECT_LE(
      difference(
          torch::linear(
              x.to(torch::kDouble),
              fc->weight.to(torch::kDouble),
              fc->bias.to(torch::kDouble)),
          fc->forward(x)),
      1e-5);
}

TEST(Adapters, OfHalfWeightsAreFp32UnlessAskedOtherwise) {
  for (const bool widens : {true, false}) {
    MixedNet net = made_net();
    net->to(torch::kBFloat16);
    AdapterOptions options = kFc;
    options.autocast_adapter_dtype = widens;
    add_adapters(net, options);
    const auto a = net->named_parameters()["fc.lora_A.default.weight"];
    EXPECT_EQ(a.scalar_type(), widens ? torch::kFloat : torch::kBFloat16);
    EXPECT_EQ(
        net->fc(torch::ones({2, 6}, torch::kBFloat16)).scalar_type(),
        torch::kBFloat16);
  }
}

TEST(Adapters, OfChosenBiases) {
  AdapterOptions options = kFc;
  options.bias = AdapterBias::lora_only;
  EXPECT_THAT(
      names_of(*adapted_net(options)),
      UnorderedElementsAre(
          "fc.bias", "fc.lora_A.default.weight", "fc.lora_B.default.weight"));
  options.bias = AdapterBias::all;
  EXPECT_THAT(
      names_of(*adapted_net(options)),
      IsSupersetOf({"fc.bias", "conv1.bias", "conv2.bias"}));
}

TEST(Adapters, TrainCopiesOfModules) {
  MixedNet net = made_net();
  const torch::Tensor before = net->forward(some_ids());
  AdapterOptions options = kFc;
  options.modules_to_save = {"head"};
  add_adapters(net, options);
  EXPECT_EQ(difference(net->forward(some_ids()), before), 0);
  const torch::Tensor copy =
      net->named_parameters()["head.modules_to_save.default.weight"];
  EXPECT_TRUE(copy.requires_grad());
  EXPECT_FALSE(net->head->weight.requires_grad());
  {
    const torch::NoGradGuard no_grad;
    copy.add_(1);
  }
  const torch::Tensor changed = net->forward(some_ids());
  EXPECT_GT(difference(changed, before), 1e-3);
  {
    const DisableAdapters off(net);
    EXPECT_EQ(difference(net->forward(some_ids()), before), 0);
  }
  net->forward(some_ids()).square().mean().backward();
  EXPECT_TRUE(copy.grad().defined());
  merge_and_unload(net);
  EXPECT_EQ(difference(net->forward(some_ids()), changed), 0);
  EXPECT_TRUE(torch::equal(net->head->weight, copy));
}

TEST(Adapters, ComputeBesideOffloadedWeights) {
  const TemporaryDirectory directory;
  AdapterOptions options = kAllKinds;
  options.use_dora = true;
  MixedNet net = adapted_net(options);
  const torch::NoGradGuard no_grad;
  const torch::Tensor output = net->forward(some_ids());
  const auto big = disk_offload(net, directory.path());
  EXPECT_EQ(difference(net->forward(some_ids()), output), 0);
  expect_error<ConfigError>(
      [&] { merge_adapters(net); }, "must be in memory, but is offloaded");
}

AdapterOptions with_targets(ModulePattern targets) {
  return {.rank = 2, .target_modules = std::move(targets)};
}

// model.layers.I.fc
std::shared_ptr<torch::nn::Module> numbered_layers() {
  auto root = std::make_shared<torch::nn::Module>("Numbered");
  auto model = root->register_module(
      "model", std::make_shared<torch::nn::Module>("Model"));
  torch::nn::ModuleList layers;
  for (int i = 0; i < 3; ++i) {
    auto block = std::make_shared<torch::nn::Module>("Block");
    block->register_module("fc", torch::nn::Linear(4, 4));
    layers->push_back(block);
  }
  model->register_module("layers", layers);
  return root;
}

TEST(Adapters, AreOfTheLayersThatOptionsName) {
  const auto added = [](const AdapterOptions& options) {
    return add_adapters(made_net(), options);
  };
  EXPECT_THAT(added(with_targets("conv[12]")), ElementsAre("conv1", "conv2"));
  EXPECT_THAT(added(with_targets("all-linear")), ElementsAre("fc", "head"));
  AdapterOptions options = with_targets("all-linear");
  options.exclude_modules = {"head"};
  EXPECT_THAT(added(options), ElementsAre("fc"));
  options = with_targets({"fc"});
  options.layers_to_transform = {0, 2};
  const auto net = numbered_layers();
  const auto first_and_last =
      ElementsAre("model.layers.0.fc", "model.layers.2.fc");
  EXPECT_THAT(add_adapters(net, options), first_and_last);
  options.layers_pattern = {"layers"};
  EXPECT_THAT(add_adapters(net, options, "pattern"), first_and_last);
  options.layers_pattern = {"blocks"};
  expect_error<ConfigError>(
      [&] { add_adapters(net, options, "none"); }, "but matches none");
}

/// Has the name of a linear layer without being one of LibTorch or of a program.
struct LinearImpl : torch::nn::Module {
  LinearImpl() { weight = register_parameter("weight", torch::ones({16, 16})); }
  torch::Tensor weight;
};

// Float8, quantisation and adapters agree on what a linear layer is.
TEST(Adapters, OfAllLinearLayersAreOfThoseOfFloat8) {
  const auto model = std::make_shared<torch::nn::Module>("Model");
  model->register_module("libtorch", torch::nn::Linear(16, 16));
  model->register_module("own", std::make_shared<LinearImpl>());
  const auto of_program = std::make_shared<torch::nn::Module>("Linear");
  of_program->register_parameter("weight", torch::ones({16, 16}));
  model->register_module("of_program", of_program);
  std::vector<std::string> names;
  for (const Float8LayerChoice& layer : choose_float8_layers(*model))
    names.push_back(layer.name);
  EXPECT_THAT(names, ElementsAre("libtorch", "of_program"));
  EXPECT_EQ(add_adapters(model, with_targets("all-linear")), names);
}

TEST(Adapters, HaveTheScaleOfTheirOptions) {
  for (const bool use_rslora : {false, true}) {
    torch::nn::Linear fc(4, 3);
    AdapterOptions options{.rank = 16, .target_modules = ".*"};
    options.alpha = 8;
    options.use_rslora = use_rslora;
    add_adapters(fc, options);
    options.rank_pattern = {{".*", 4}};
    options.alpha_pattern = {{".*", 3}};
    add_adapters(fc, options, "pattern");
    fill_adapters(*fc);
    const torch::Tensor x = torch::randn({2, 4});
    const torch::Tensor base =
        torch::addmm(fc->bias, x, fc->weight.detach().clone().t());
    const auto named = fc->named_parameters();
    const auto product = [&](const std::string& name) {
      return x.mm(named["lora_A." + name + ".weight"].t())
          .mm(named["lora_B." + name + ".weight"].t());
    };
    const double scale = use_rslora ? 2 : 0.5;
    EXPECT_LE(difference(fc(x), base + scale * product("default")), 1e-5);
    set_adapter(fc, "pattern");
    const double other = use_rslora ? 1.5 : 0.75;
    EXPECT_LE(difference(fc(x), base + other * product("pattern")), 1e-5);
  }
}

struct OwnLinear : public torch::nn::Module {
  explicit OwnLinear(torch::Tensor values)
      : weight(register_parameter("weight", std::move(values))) {}
  torch::Tensor weight;
};

TEST(Adapters, TakeMatricesEitherWay) {
  const torch::Tensor x = torch::randn({3, 4}), values = torch::randn({4, 6});
  for (const bool is_transposed : {true, false}) {
    OwnLinear net(is_transposed ? values.clone() : values.t().contiguous());
    const auto output = [&] {
      return x.matmul(is_transposed ? net.weight : net.weight.t());
    };
    add_adapters(
        net,
        {.rank = 2, .target_modules = ".*", .fan_in_fan_out = is_transposed});
    fill_adapters(net);
    const auto named = net.named_parameters();
    const torch::Tensor product = x.mm(named["lora_A.default.weight"].t())
                                      .mm(named["lora_B.default.weight"].t());
    EXPECT_LE(difference(output(), x.mm(values) + 4 * product), 1e-5);
    merge_adapters(net);
    EXPECT_LE(difference(output(), x.mm(values) + 4 * product), 1e-5);
  }
}

TEST(Adapters, KeepTheirOptions) {
  MixedNet net = made_net();
  AdapterOptions options = with_targets("all-linear");
  options.task_type = "CAUSAL_LM";
  options.base_model_name_or_path = "models/mixed";
  add_adapters(net, options);
  const TemporaryDirectory directory;
  save_adapters(net, directory.path());
  for (const AdapterOptions& kept :
       {adapter_options(net), read_adapter_options(directory.path())}) {
    EXPECT_THAT(kept.target_modules.names(), ElementsAre("fc", "head"));
    EXPECT_EQ(kept.task_type, "CAUSAL_LM");
    EXPECT_EQ(kept.base_model_name_or_path, "models/mixed");
    EXPECT_EQ(kept.rank, 2);
  }
}

struct Refused {
  AdapterOptions options;
  const char* phrase;
};

TEST(Adapters, RefuseOptionsWithTheReason) {
  AdapterOptions several{.rank = 0, .dropout = 1};
  AdapterOptions with_pattern = with_targets("fc");
  with_pattern.layers_to_transform = {1};
  AdapterOptions bad_rank = kFc;
  bad_rank.rank_pattern = {{"fc", -1}};
  AdapterOptions saved = kFc;
  saved.modules_to_save = {"tail"};
  for (const Refused& each : std::vector<Refused>{
           {several, "rank must be at least 1, but is 0"},
           {several, "dropout must be at least 0 and less than 1, but is 1"},
           {several, "target_modules must name layers, but is empty"},
           {with_targets({"q_proj"}),
            "target_modules must match layers of the model, but matches none; "
            "its linear layers are: fc, head"},
           {with_targets("fc("),
            "must be a regular expression, but is \"fc(\""},
           {with_targets(""), "target_modules must name layers"},
           {with_pattern,
            "target_modules must be names if layers_to_transform is set"},
           {bad_rank, "\"fc\" must have a rank of at least 1, but has -1"},
           {saved,
            "modules_to_save must name modules of the model, but \"tail\" is "
            "none"}}) {
    MixedNet net = made_net();
    expect_error<ConfigError>(
        [&] { add_adapters(net, each.options); }, each.phrase);
    EXPECT_THAT(adapter_names(net), IsEmpty());
    EXPECT_TRUE(net->fc->weight.requires_grad());
  }
}

TEST(Adapters, RefuseNamesWithTheReason) {
  MixedNet net = made_net();
  for (const char* const name : {"", "a.b"}) {
    expect_error<ConfigError>(
        [&] { add_adapters(net, kFc, name); },
        "the name of an adapter must not be empty or have a dot");
  }
  expect_error<ConfigError>(
      [&] { set_adapter(net, "default"); },
      "the model must have adapters, but Mixed has none");
  add_adapters(net, kFc);
  expect_error<ConfigError>(
      [&] { add_adapters(net, kFc); },
      "the name of a new adapter must be unused, but the model has an adapter "
      "\"default\"");
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { set_adapter(net, "other"); },
           [&] { delete_adapter(net, "other"); },
           [&] { merge_adapters(net, {.names = {"other"}}); },
           [&] { save_adapters(net, "unused", "other"); }}) {
    expect_error<ConfigError>(
        call,
        "the name of an adapter must be one of default, but is \"other\"");
  }
  expect_error<ConfigError>(
      [&] { set_adapter(net->fc, "default"); },
      "the model must be the module to which the adapters were added");
}

struct SharingLinear : public torch::nn::Module {
  explicit SharingLinear(const torch::Tensor& shared)
      : Module("Linear"), weight(register_parameter("weight", shared)) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::linear(x, weight);
  }
  torch::Tensor weight;
};

struct Tied : public torch::nn::Module {
  explicit Tied(int num_heads) : Module("Tied") {
    register_module("embed", embed);
    for (int i = 0; i < num_heads; ++i) {
      heads.push_back(register_module(
          "head" + std::to_string(i),
          std::make_shared<SharingLinear>(embed->weight)));
    }
    register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  }
  torch::nn::Embedding embed{6, 4};
  std::vector<std::shared_ptr<SharingLinear>> heads;
};

TEST(Adapters, OfTiedWeightsActOnTheirOwnLayer) {
  Tied net(1);
  const torch::Tensor ids = torch::arange(6);
  const torch::Tensor rows = net.embed(ids);
  add_adapters(net, with_targets({"embed"}));
  fill_adapters(net);
  EXPECT_GT(difference(net.embed(ids), rows), 1e-3);
  EXPECT_EQ(
      difference(net.heads[0]->forward(rows), torch::linear(rows, rows)), 0);
  expect_error<ConfigError>(
      [&] { merge_adapters(net); },
      "the weight of \"embed\" must not be tied, but is also that of "
      "\"head0\"");
}

TEST(Adapters, RefuseTiedLayersOfOneKindAndOtherLayers) {
  Tied net(2);
  expect_error<ConfigError>(
      [&] { add_adapters(net, with_targets({"head1"})); },
      "the weight of \"head1\" must not be shared with another linear layer, "
      "but is that of \"head0\" too (tied weights)");
  expect_error<ConfigError>(
      [&] { add_adapters(net, with_targets({"embed", "head0"})); },
      "must not be shared with another layer that gets an adapter");
  expect_error<ConfigError>(
      [&] { add_adapters(net, with_targets({"norm"})); },
      "\"norm\" must be a linear, embedding or convolution layer, but is a "
      "LayerNorm");
}

TEST(Adapters, OfGroupedConvolutionsNeedARankThatGroupsDivide) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 6, 3).groups(2));
  expect_error<ConfigError>(
      [&] { add_adapters(conv, {.rank = 3, .target_modules = ".*"}); },
      "must have a rank that its 2 groups divide, but has 3");
  const torch::Tensor x = torch::randn({2, 4, 5, 5});
  const torch::Tensor base = conv(x);
  add_adapters(conv, {.rank = 4, .target_modules = ".*"});
  fill_adapters(*conv);
  EXPECT_GT(difference(conv(x), base), 1e-3);
  expect_error<ConfigError>(
      [&] { merge_adapters(conv); },
      "must not be a convolution of several groups, but has 2");
}

AdapterOptions options_of_chance() {
  AdapterOptions options;
  options.rank = *rc::gen::inRange(1, 6);
  options.alpha = *rc::gen::inRange(1, 20);
  options.use_rslora = *rc::gen::arbitrary<bool>();
  options.use_dora = *rc::gen::arbitrary<bool>();
  std::vector<std::string> names = {"head"};
  for (const std::string& name : kKinds)
    if (*rc::gen::arbitrary<bool>()) names.push_back(name);
  options.target_modules = names;
  return options;
}

RC_GTEST_PROP(
    AdapterLaws,
    MergedModelsComputeTheSameAndUnmergedOnesAreAsBefore,
    ()) {
  MixedNet net = made_net();
  const int count = *rc::gen::inRange(1, 3);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    names.push_back(std::to_string(i));
    add_adapters(net, options_of_chance(), names.back());
  }
  fill_adapters(*net, *rc::gen::inRange(1, 1000));
  set_adapter(net, names);
  std::vector<torch::Tensor> weights;
  for (const torch::Tensor& each : net->parameters())
    weights.push_back(each.detach().clone());
  const torch::Tensor output = net->forward(some_ids());
  merge_adapters(net, {.safe_merge = *rc::gen::arbitrary<bool>()});
  RC_ASSERT(merged_adapters(net) == names);
  RC_ASSERT(torch::allclose(net->forward(some_ids()), output, 1e-4, 1e-5));
  unmerge_adapters(net);
  RC_ASSERT(merged_adapters(net).empty());
  std::size_t next = 0;
  for (const torch::Tensor& each : net->parameters())
    RC_ASSERT(torch::allclose(each, weights[next++], 1e-4, 1e-5));
  RC_ASSERT(torch::allclose(net->forward(some_ids()), output, 1e-4, 1e-5));
}

TEST(MergedAdapters, AreNotDisabledDeletedOrMergedAgain) {
  MixedNet net = adapted_net(kFc);
  merge_adapters(net);
  expect_error<ConfigError>(
      [&] { const DisableAdapters off(net); }, "must not be merged");
  expect_error<ConfigError>(
      [&] { delete_adapter(net, "default"); }, "must not be merged");
  expect_error<ConfigError>(
      [&] { merge_adapters(net); }, "but default already are");
}

TEST(MergedAdapters, AreRefusedIfTheyAreBroken) {
  MixedNet net = adapted_net(kFc);
  {
    const torch::NoGradGuard no_grad;
    net->named_parameters()["fc.lora_A.default.weight"].fill_(1e38);
    net->named_parameters()["fc.lora_B.default.weight"].fill_(1e38);
  }
  const torch::Tensor before = net->fc->weight.clone();
  expect_error<Error>(
      [&] { merge_adapters(net, {.safe_merge = true}); },
      "merged weights must be finite, but that of \"fc\" is not");
  EXPECT_TRUE(torch::equal(net->fc->weight, before));
}

TEST(QuantizedBase, TrainsAdaptersAndRefusesToMerge) {
  for (const bool is_4bit : {true, false}) {
    torch::manual_seed(0);
    torch::nn::Sequential net(
        torch::nn::Linear(32, 64), torch::nn::Tanh(), torch::nn::Linear(64, 8));
    QuantizationOptions config;
    config.load_in_4bit = is_4bit;
    config.load_in_8bit = !is_4bit;
    config.bnb_4bit_quant_type = "nf4";
    config.skip_modules = std::vector<std::string>{};
    config.torch_dtype = "fp32";
    const QuantizedModel quantized = load_and_quantize_model(*net, config);
    const torch::Tensor x = torch::randn({4, 32});
    const torch::Tensor base = net->forward(x);
    add_adapters(net, {.rank = 4, .target_modules = "all-linear"});
    EXPECT_EQ(difference(net->forward(x), base), 0);
    const auto loss = [&] { return (net->forward(x) - 1).square().mean(); };
    std::vector<torch::Tensor> trained;
    for (const torch::Tensor& each : net->parameters())
      if (each.requires_grad()) trained.push_back(each);
    ASSERT_EQ(trained.size(), 4U);
    torch::optim::Adam adam(trained, 0.05);
    const double first = loss().item<double>();
    for (int step = 0; step < 20; ++step) {
      adam.zero_grad();
      loss().backward();
      adam.step();
    }
    EXPECT_LT(loss().item<double>(), 0.5 * first);
    const auto named = net->named_parameters();
    const torch::Tensor expected = quantized.weight("0").linear(x) +
        2 *
            x.mm(named["0.lora_A.default.weight"].t())
                .mm(named["0.lora_B.default.weight"].t());
    EXPECT_LE(
        difference(
            net->ptr(0)->as<torch::nn::Linear>()->forward(x),
            expected + named["0.bias"]),
        1e-5);
    expect_error<ConfigError>(
        [&] { merge_adapters(net); },
        "the weight of \"0\" must not be quantised, but is: save the adapters");
  }
}

TEST(SavedAdapters, ComeBackUnderAnotherName) {
  const TemporaryDirectory directory;
  AdapterOptions options = kAllKinds;
  options.use_dora = true;
  options.modules_to_save = {"head"};
  MixedNet net = adapted_net(options);
  const torch::Tensor output = net->forward(some_ids());
  save_adapters(net, directory.path());
  MixedNet other = made_net();
  load_adapters(other, directory.path(), "again");
  EXPECT_THAT(active_adapters(other), ElementsAre("again"));
  EXPECT_EQ(difference(other->forward(some_ids()), output), 0);
  EXPECT_THAT(names_of(*other), IsEmpty());
  load_adapters(other, directory.path(), "trained", {.is_trainable = true});
  set_adapter(other, "trained");
  EXPECT_EQ(names_of(*other).size(), names_of(*net).size());
  // An adapter that exists gets the values.
  fill_adapters(*other, 9);
  load_adapters(other, directory.path(), "trained");
  EXPECT_EQ(difference(other->forward(some_ids()), output), 0);
}

TEST(SavedAdapters, NameWhatDoesNotFit) {
  const TemporaryDirectory directory;
  save_adapters(adapted_net(kFc), directory.path());
  MixedNet net = made_net();
  AdapterOptions options = kFc;
  options.rank = 3;
  add_adapters(net, options);
  expect_error<CheckpointError>(
      [&] { load_adapters(net, directory.path()); },
      "\"base_model.model.fc.lora_A.weight\" must have the shape [3, 6], but "
      "has [2, 6]");
  options.target_modules = {"head"};
  add_adapters(net, options, "head");
  expect_error<CheckpointError>(
      [&] { load_adapters(net, directory.path(), "head"); },
      "\"base_model.model.head.lora_A.weight\" is missing");
}

TEST(SavedAdapters, RefuseConfigurationsThatAreNotSupported) {
  const TemporaryDirectory directory;
  struct Text {
    const char* text;
    const char* phrase;
  };
  for (const Text& each : std::vector<Text>{
           {R"({"peft_type": "IA3"})",
            "\"peft_type\" must be \"LORA\", but is \"IA3\""},
           {R"({"peft_type": "LORA", "lora_bias": true})",
            "\"lora_bias\" must be false, but is true"},
           {R"({"peft_type": "LORA", "init_lora_weights": "pissa"})",
            "\"init_lora_weights\" must be true, but is \"pissa\""}}) {
    std::ofstream(directory / "adapter_config.json") << each.text;
    expect_error<ConfigError>(
        [&] { static_cast<void>(read_adapter_options(directory.path())); },
        each.phrase);
  }
  for (const Text& each : std::vector<Text>{
           {"{}", "\"peft_type\" must be what PEFT writes, but is missing"},
           {"[]", "it must be an object"},
           {"{", "line 1"},
           {R"({"peft_type": "LORA", "r": "four"})",
            "\"r\" must be what PEFT writes, but is another type"}}) {
    std::ofstream(directory / "adapter_config.json") << each.text;
    expect_error<CheckpointError>(
        [&] { static_cast<void>(read_adapter_options(directory.path())); },
        each.phrase);
  }
}

}  // namespace accelerate::testing::adapters_test
