// Unmodified modules whose layers are split over tensor-parallel ranks: they
// train as in one process, alone and with other techniques.
#include <accelerate/accelerate.h>

#include <map>

#include "support/expect_error.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace tensor_parallel_test {

using testing::expect_error;
using testing::named;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using testing::Weights;
using torch::Tensor;
namespace nn = torch::nn;

constexpr std::int64_t kBatch = 4;  // of one batch rank
constexpr double kTolerance = 2e-5;

// Sets the same values in each process, parameter by parameter.
void fill(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  double number = 0;
  for (Tensor& parameter : module.parameters()) {
    const Tensor values =
        torch::sin(torch::arange(parameter.numel()) * 0.9 + 37 * number++);
    parameter.copy_((values * 0.4).view(parameter.sizes()));
  }
}

/// Two linear layers between norms; inner sizes divide unevenly among 3 ranks,
/// and products use addmm (matrices) or matmul (batches of matrices).
struct Mlp : nn::Module {
  explicit Mlp(bool is_matrix = true) : takes_matrix(is_matrix) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
    register_module("head", head);
    shift = register_buffer("shift", torch::full({3}, 0.25));
    fill(*this);
  }
  Tensor forward(const Tensor& x_BC) {
    const Tensor x = takes_matrix ? x_BC : x_BC.view({2, -1, 6});
    const Tensor y = head(x + down(torch::tanh(up(norm(x))))) + shift;
    return y.view({x_BC.size(0), 3});
  }
  static ParallelizePlan plan() {
    return {{"up", ColwiseParallel{}}, {"down", RowwiseParallel{}}};
  }
  static Tensor inputs(int step, int num_batches) {
    return torch::sin(torch::arange(num_batches * kBatch * 6, torch::kFloat)
                          .mul(0.37)
                          .add(step)
                          .view({-1, 6}));
  }

  bool takes_matrix;
  nn::LayerNorm norm{nn::LayerNormOptions({6})};
  nn::Linear up{6, 10}, down{10, 6}, head{6, 3};
  Tensor shift;
};

struct MlpOnBatches : Mlp {
  MlpOnBatches() : Mlp(false) {}
};

/// Layers that do not come in pairs: most gather their outputs, and some have
/// no bias.
struct GatheredMlp : nn::Module {
  GatheredMlp() {
    layers->push_back(nn::Linear(6, 7));
    layers->push_back(nn::Linear(nn::LinearOptions(7, 5).bias(false)));
    layers->push_back(nn::Linear(5, 4));
    layers->push_back(nn::Linear(nn::LinearOptions(4, 3).bias(false)));
    register_module("layers", layers);
    fill(*this);
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers)
      x = torch::tanh(layer->as<nn::LinearImpl>()->forward(x));
    return x;
  }
  static ParallelizePlan plan() {
    return {
        {"layers.2",
         RowwiseParallel{
             .input_layouts = Replicate{}, .output_layouts = Shard{-1}}},
        {"layers.3",
         ColwiseParallel{
             .input_layouts = Shard{-1}, .output_layouts = Replicate{}}},
        {"layers.*", ColwiseParallel{.output_layouts = Replicate{}}}};
  }
  static Tensor inputs(int step, int num_batches) {
    return Mlp::inputs(step, num_batches);
  }
  nn::ModuleList layers;
};

/// A small GPT like the one in examples/gpt: one product for queries, keys and
/// values, a view with the number of heads, and the embedding as last layer.
struct Gpt : nn::Module {
  static constexpr std::int64_t kTokens = 11, kWidth = 8, kHeads = 2, kTime = 5;
  Gpt() {
    register_module("tokens", tokens);
    register_module("positions", positions);
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("mlp", mlp);
    fill(*this);
  }
  Tensor forward(const Tensor& tokens_BT) {
    const std::int64_t batch = tokens_BT.size(0);
    Tensor x = tokens(tokens_BT) + positions(torch::arange(kTime));
    const auto heads = [&](const Tensor& part) {
      return part.view({batch, kTime, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    const Tensor mixed = at::scaled_dot_product_attention(
        heads(parts[0]),
        heads(parts[1]),
        heads(parts[2]),
        {},
        0,
        /*is_causal=*/true);
    x = x + out(mixed.transpose(1, 2).reshape({batch, kTime, kWidth}));
    x = x + mlp->forward(norm2(x));
    return torch::matmul(x, tokens->weight.t());
  }
  static ParallelizePlan plan() {
    return {
        {"tokens", RowwiseParallel{}},
        {"qkv", ColwiseParallel{.output_layouts = Replicate{}}},
        {"out", RowwiseParallel{.input_layouts = Replicate{}}},
        {"mlp.0", ColwiseParallel{}},
        {"mlp.2", RowwiseParallel{}}};
  }
  static Tensor inputs(int step, int num_batches) {
    return (torch::arange(num_batches * kBatch * kTime) * 7 + step)
        .remainder(kTokens)
        .view({-1, kTime});
  }
  nn::Embedding tokens{kTokens, kWidth}, positions{kTime, kWidth};
  nn::LayerNorm norm1{nn::LayerNormOptions({kWidth})},
      norm2{nn::LayerNormOptions({kWidth})};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth};
  nn::Sequential mlp{
      nn::Linear(kWidth, 2 * kWidth),
      nn::GELU(),
      nn::Linear(2 * kWidth, kWidth)};
};

/// LibTorch's own encoder.
struct Encoder : nn::Module {
  Encoder() {
    register_module("encoder", encoder);
    fill(*this);
  }
  Tensor forward(const Tensor& x_TBC) { return encoder(x_TBC); }
  static ParallelizePlan plan() {
    return {
        {"encoder.layers.*.self_attn",
         ColwiseParallel{.output_layouts = Replicate{}}},
        {"**.out_proj", RowwiseParallel{.input_layouts = Replicate{}}},
        {"**.linear1", ColwiseParallel{}},
        {"**.linear2", RowwiseParallel{}}};
  }
  static Tensor inputs(int step, int num_batches) {
    return torch::sin(torch::arange(num_batches * kBatch * 3 * 8, torch::kFloat)
                          .mul(0.37)
                          .add(step)
                          .view({num_batches * kBatch, 3, 8}));
  }
  nn::TransformerEncoder encoder{nn::TransformerEncoderOptions(
      nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0),
      2)};
};

/// Norms on slices of the sequence, between layers that scatter and gather it.
struct SequenceNet : nn::Module {
  SequenceNet() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
    register_module("last", last);
    fill(*this);
  }
  Tensor forward(const Tensor& x_BTC) {
    const Tensor x = first(torch::tanh(x_BTC));
    return last(down(torch::tanh(up(norm(x)))) + x);
  }
  static ParallelizePlan plan() {
    return {
        {"first",
         RowwiseParallel{
             .input_layouts = Replicate{}, .output_layouts = Shard{1}}},
        {"norm", SequenceParallel{}},
        {"up", ColwiseParallel{.input_layouts = Shard{1}}},
        {"down", RowwiseParallel{.output_layouts = Shard{1}}},
        {"last",
         ColwiseParallel{
             .input_layouts = Shard{1}, .output_layouts = Replicate{}}}};
  }
  static Tensor inputs(int step, int num_batches) {
    return torch::sin(torch::arange(num_batches * kBatch * 5 * 6, torch::kFloat)
                          .mul(0.37)
                          .add(step)
                          .view({num_batches * kBatch, 5, 6}));
  }
  nn::LayerNorm norm{nn::LayerNormOptions({6})};
  nn::Linear first{6, 6}, up{6, 10}, down{10, 6}, last{6, 3};
};

struct Grid {
  int replicate = 1;
  int shard = 1;
  int tensor = 1;

  [[nodiscard]] int num_batches() const { return replicate * shard; }
  [[nodiscard]] int num_ranks() const { return num_batches() * tensor; }
  [[nodiscard]] std::string name() const {
    return std::to_string(replicate) + "x" + std::to_string(shard) + "x" +
        std::to_string(tensor);
  }
};

AcceleratorOptions options_on(
    const Grid& grid,
    const ParallelizePlan& plan,
    const WorldOptions& world = {}) {
  return {
      .parallel =
          {.replicate = grid.replicate,
           .shard = grid.shard,
           .tensor = grid.tensor,
           .parallelize_plan = plan},
      .world = world};
}

torch::optim::AdamWOptions adamw() {
  return torch::optim::AdamWOptions(1e-2).weight_decay(0.1).eps(1e-4);
}

Tensor loss_of(const Tensor& output) {
  const Tensor weights =
      torch::cos(torch::arange(output.size(-1), output.options()));
  return (output * weights).sum(-1).pow(2).mean();
}

void expect_near(
    const Weights& found,
    const Weights& expected,
    double tolerance = kTolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    ASSERT_EQ(found.at(name).sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(torch::allclose(found.at(name), tensor, tolerance, tolerance))
        << name << " differs by "
        << (found.at(name) - tensor).abs().max().item<double>();
  }
}

void expect_equal(const Weights& found, const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(torch::equal(found.at(name), tensor)) << name;
  }
}

struct Outcome {
  std::vector<double> losses, norms;
  Weights weights;
};

// Trains in one process; the loss is a mean over samples, the first dimension
// of the inputs.
template <class Net>
Outcome train_alone(int num_batches, int num_steps) {
  Outcome outcome;
  const auto net = std::make_shared<Net>();
  torch::optim::AdamW optimizer(net->parameters(), adamw());
  for (int step = 0; step < num_steps; ++step) {
    optimizer.zero_grad();
    Tensor loss;
    const Tensor all = Net::inputs(step, num_batches);
    for (const Tensor& mine : all.chunk(num_batches)) {
      const Tensor each = loss_of(net->forward(mine)) / num_batches;
      loss = loss.defined() ? loss + each : each;
    }
    loss.backward();
    outcome.losses.push_back(loss.template item<double>());
    outcome.norms.push_back(
        nn::utils::clip_grad_norm_(net->parameters(), 0.05));
    optimizer.step();
  }
  outcome.weights = named(get_state_dict(*net));
  return outcome;
}

// Trains from step `first` to step `last` on this rank.
template <class Net>
void train(
    const Accelerator& accelerator,
    const Model<Net>& model,
    const Optimizer& optimizer,
    int first,
    int last,
    Outcome& outcome) {
  const Mesh& mesh = accelerator.mesh();
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    const Tensor mine = Net::inputs(step, mesh.batch_count())
                            .narrow(0, mesh.batch_rank() * kBatch, kBatch);
    const Tensor loss = loss_of(model(mine));
    accelerator.backward(loss);
    outcome.losses.push_back(accelerator.reduce(loss.detach(), ReduceOp::mean)
                                 .template item<double>());
    outcome.norms.push_back(
        accelerator.clip_grad_norm_(model, 0.05).template item<double>());
    optimizer.step();
  }
}

template <class Net>
void expect_parity(
    AcceleratorOptions options,
    int num_ranks,
    int num_batches,
    int num_steps) {
  const Outcome expected = train_alone<Net>(num_batches, num_steps);
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    auto own = options;
    own.world = world;
    const Accelerator accelerator(own);
    // Only rank 0 has the initial values.
    const auto net = std::make_shared<Net>();
    if (!accelerator.is_main_process()) {
      const torch::NoGradGuard no_grad;
      for (Tensor& tensor : net->parameters()) tensor.add_(1);
      for (Tensor& tensor : net->buffers()) tensor.add_(1);
    }
    torch::optim::AdamW inner(net->parameters(), adamw());
    const auto [model, optimizer] = accelerator.prepare(net, inner);
    Outcome found;
    train(accelerator, model, optimizer, 0, num_steps, found);
    for (std::size_t step = 0; step < found.losses.size(); ++step) {
      EXPECT_NEAR(found.losses[step], expected.losses[step], kTolerance);
      EXPECT_NEAR(
          found.norms[step],
          expected.norms[step],
          kTolerance * (1 + expected.norms[step]));
    }
    expect_near(
        named(accelerator.get_state_dict(model, {.rank0_only = false})),
        expected.weights);
  });
}

template <class Net>
class TensorParallelOf : public ::testing::Test {};
using Nets =
    ::testing::Types<Mlp, MlpOnBatches, GatheredMlp, SequenceNet, Gpt, Encoder>;
TYPED_TEST_SUITE(TensorParallelOf, Nets);

TYPED_TEST(TensorParallelOf, TrainsAsOneProcessDoesOnTwoRanks) {
  const Grid grid{.tensor = 2};
  expect_parity<TypeParam>(options_on(grid, TypeParam::plan()), 2, 1, 20);
}

TYPED_TEST(TensorParallelOf, TrainsAsOneProcessDoesOnThreeRanks) {
  const Grid grid{.tensor = 3};
  expect_parity<TypeParam>(options_on(grid, TypeParam::plan()), 3, 1, 20);
}

TYPED_TEST(TensorParallelOf, TrainsAsOneProcessDoesOnReplicas) {
  const Grid grid{.replicate = 2, .tensor = 2};
  expect_parity<TypeParam>(options_on(grid, TypeParam::plan()), 4, 2, 5);
}

TYPED_TEST(TensorParallelOf, TrainsAsOneProcessDoesOnShards) {
  const Grid grid{.shard = 2, .tensor = 2};
  expect_parity<TypeParam>(options_on(grid, TypeParam::plan()), 4, 2, 5);
}

TYPED_TEST(TensorParallelOf, TrainsAsOneProcessDoesIfRecomputed) {
  for (const int shard : {1, 2}) {
    const Grid grid{.shard = shard, .tensor = 2};
    auto options = options_on(grid, TypeParam::plan());
    options.parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
        .min_num_params = 20};
    expect_parity<TypeParam>(options, grid.num_ranks(), shard, 5);
  }
}

// Trains in windows of micro-steps, with options that also work in one process.
// Uses SGD: the gradient of a key's bias is zero up to rounding, which Adam
// would divide by itself.
template <class Net, class Options>
Weights train_windows(
    const Options& options,
    const WorldOptions& world,
    at::ScalarType dtype = at::kFloat) {
  auto own = options;
  own.world = world;
  const Accelerator accelerator(own);
  const auto net = std::make_shared<Net>();
  net->to(dtype);
  torch::optim::SGD inner(net->parameters(), torch::optim::SGDOptions(0.5));
  const auto [model, optimizer] = accelerator.prepare(net, inner);
  const Mesh& mesh = accelerator.mesh();
  for (int step = 0; step < 6; ++step) {
    const auto scope = accelerator.accumulate(model);
    Tensor mine = Net::inputs(step, mesh.batch_count())
                      .narrow(0, mesh.batch_rank() * kBatch, kBatch);
    if (mine.is_floating_point()) mine = mine.to(dtype);
    accelerator.backward(loss_of(model(mine).to(at::kFloat)));
    if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(model, 0.05);
    optimizer.step();
    optimizer.zero_grad();
  }
  Weights weights;
  for (const auto& [name, tensor] :
       named(accelerator.get_state_dict(model, {.rank0_only = false})))
    weights[name] = tensor.to(at::kFloat);
  return weights;
}

struct Numbers {
  Precision precision = Precision::no;
  bool master_weights = false;
  int window = 1;
  double tolerance = kTolerance;
};

template <class Net>
void expect_parity_in(const Numbers& numbers) {
  const auto options_of = [&](const Grid& grid) {
    auto options = options_on(grid, Net::plan());
    options.mixed_precision = numbers.precision;
    options.master_weights = numbers.master_weights;
    options.gradient_accumulation_steps = numbers.window;
    return options;
  };
  const at::ScalarType dtype =
      numbers.master_weights ? at::kBFloat16 : at::kFloat;
  Weights expected;
  run_on_ranks(1, [&](const WorldOptions& world) {
    expected = train_windows<Net>(options_of({}), world, dtype);
  });
  for (const int num_ranks : {2, 3}) {
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      expect_near(
          train_windows<Net>(options_of({.tensor = num_ranks}), world, dtype),
          expected,
          numbers.tolerance);
    });
  }
}

TYPED_TEST(TensorParallelOf, AccumulatesAsOneProcessDoes) {
  expect_parity_in<TypeParam>({.window = 3});
}

TYPED_TEST(TensorParallelOf, TrainsInBf16AsOneProcessDoes) {
  expect_parity_in<TypeParam>(
      {.precision = Precision::bf16, .tolerance = 2e-2});
}

TYPED_TEST(TensorParallelOf, TrainsMasterWeightsAsOneProcessDoes) {
  expect_parity_in<TypeParam>(
      {.precision = Precision::bf16,
       .master_weights = true,
       .tolerance = 2e-2});
}

TYPED_TEST(TensorParallelOf, EvaluatesAsOneProcessDoes) {
  const Tensor x = TypeParam::inputs(3, 1);
  const torch::NoGradGuard outer_no_grad;
  const Tensor expected = std::make_shared<TypeParam>()->forward(x);
  run_on_ranks(2, [&](const WorldOptions& world) {
    const torch::NoGradGuard no_grad;
    const Accelerator accelerator(
        options_on({.tensor = 2}, TypeParam::plan(), world));
    const auto model = accelerator.prepare(std::make_shared<TypeParam>());
    EXPECT_TRUE(torch::allclose(model(x), expected, 1e-5, 1e-6));
  });
}

TEST(TensorParallel, KeepsSlices) {
  run_on_ranks(3, [](const WorldOptions& world) {
    const Accelerator accelerator(
        options_on({.tensor = 3}, Mlp::plan(), world));
    const Weights full = named(get_state_dict(*std::make_shared<Mlp>()));
    const auto net = std::make_shared<Mlp>();
    const auto model = accelerator.prepare(net);
    const std::int64_t rank = accelerator.process_index();
    const std::int64_t begin = 10 * rank / 3;
    const std::int64_t count = 10 * (rank + 1) / 3 - begin;
    EXPECT_EQ(net->up->weight.sizes(), at::IntArrayRef({count, 6}));
    EXPECT_EQ(net->down->weight.sizes(), at::IntArrayRef({6, count}));
    for (const WeightShard& shard : model.state_dict_shards()) {
      const Tensor& all = full.at(shard.name);
      EXPECT_EQ(shard.global_shape, all.sizes().vec()) << shard.name;
      Tensor expected = all;
      if (shard.name.starts_with("up.")) expected = all.narrow(0, begin, count);
      if (shard.name == "down.weight") expected = all.narrow(1, begin, count);
      EXPECT_TRUE(torch::equal(shard.tensor, expected)) << shard.name;
    }
  });
}

// Parameters that are not split get the same gradient on every rank.
TEST(TensorParallel, GivesWholeParametersTheGradientsOfOneProcess) {
  const auto alone = std::make_shared<Mlp>();
  loss_of(alone->forward(Mlp::inputs(0, 1))).backward();
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        options_on({.tensor = 2}, Mlp::plan(), world));
    const auto net = std::make_shared<Mlp>();
    const auto model = accelerator.prepare(net);
    accelerator.backward(loss_of(model(Mlp::inputs(0, 1))));
    const std::int64_t begin = 5 * accelerator.process_index();
    const auto near = [](const Tensor& found, const Tensor& expected) {
      return torch::allclose(found, expected, 1e-5, 1e-6);
    };
    EXPECT_TRUE(near(net->norm->weight.grad(), alone->norm->weight.grad()));
    EXPECT_TRUE(near(net->down->bias.grad(), alone->down->bias.grad()));
    EXPECT_TRUE(near(net->head->weight.grad(), alone->head->weight.grad()));
    EXPECT_TRUE(near(
        net->up->weight.grad(), alone->up->weight.grad().narrow(0, begin, 5)));
    EXPECT_TRUE(
        near(net->up->bias.grad(), alone->up->bias.grad().narrow(0, begin, 5)));
    EXPECT_TRUE(near(
        net->down->weight.grad(),
        alone->down->weight.grad().narrow(1, begin, 5)));
  });
}

TEST(TensorParallel, GoesFromEveryDegreeToEveryOther) {
  const TemporaryDirectory directory;
  const auto run = [&](const Grid& grid, auto&& body) {
    run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
      const Accelerator accelerator(options_on(grid, Gpt::plan(), world));
      const auto net = std::make_shared<Gpt>();
      torch::optim::AdamW inner(net->parameters(), adamw());
      const auto [model, optimizer] = accelerator.prepare(net, inner);
      body(accelerator, model, optimizer);
    });
  };
  const std::vector<Grid> grids{
      {1, 1, 1}, {1, 1, 2}, {1, 1, 3}, {1, 2, 2}, {2, 1, 2}};
  for (const Grid& from : grids) {
    Weights expected;
    run(from, [&](const auto& accelerator, auto& model, auto& optimizer) {
      Outcome ignored;
      train(accelerator, model, optimizer, 0, 2, ignored);
      accelerator.save_state(directory / from.name());
      accelerator.save_model(model, directory / (from.name() + "_model"));
      const Weights mine =
          named(accelerator.get_state_dict(model, {.rank0_only = false}));
      if (accelerator.is_main_process()) expected = mine;
    });
    Gpt plain;
    load_model(plain, directory / (from.name() + "_model"));
    expect_equal(named(get_state_dict(plain)), expected);
    for (const Grid& to : grids) {
      SCOPED_TRACE(from.name() + " to " + to.name());
      run(to, [&](const auto& accelerator, auto& model, auto& optimizer) {
        Outcome ignored;
        train(accelerator, model, optimizer, 5, 6, ignored);
        accelerator.load_state(directory / from.name());
        expect_equal(
            named(accelerator.get_state_dict(model, {.rank0_only = false})),
            expected);
        accelerator.load_model(model, directory / (from.name() + "_model"));
        expect_equal(
            named(accelerator.get_state_dict(model, {.rank0_only = false})),
            expected);
      });
    }
  }
}

template <class Net>
void expect_refused(
    const ParallelizePlan& plan,
    const std::string& why,
    int num_ranks = 2) {
  expect_error<ConfigError>(
      [&] {
        run_on_ranks(num_ranks, [&](const WorldOptions& world) {
          const Accelerator accelerator(
              options_on({.tensor = num_ranks}, plan, world));
          const auto model = accelerator.prepare(std::make_shared<Net>());
          (void)model(Net::inputs(0, 1));
        });
      },
      why);
}

TEST(TensorParallel, RefusesPlansThatDoNotFit) {
  expect_refused<Mlp>(
      {{"upp", ColwiseParallel{}}},
      "the pattern \"upp\" of parallelize_plan matches no module (is \"up\" "
      "meant?)");
  expect_refused<Gpt>(
      {{"mlp.1", ColwiseParallel{}}}, "\"mlp.1\" has no weight to split");
  expect_refused<Mlp>(
      {{"up", ColwiseParallel{.output_layouts = Shard{1}}}},
      "use Shard{-1} or Replicate{}");
  expect_refused<Mlp>(
      {{"head", ColwiseParallel{}}},
      "has a weight of shape [3, 6], which cannot be split along dimension 0 "
      "over 4 ranks",
      4);
  // The error has all complaints at once.
  expect_refused<Mlp>(
      {{"upp", ColwiseParallel{}}, {"nothing.*", RowwiseParallel{}}},
      "\"nothing.*\"");
}

TEST(TensorParallel, RefusesLayersThatDoNotFollowEachOther) {
  expect_refused<Mlp>(
      {{"down", RowwiseParallel{}}},
      "layer \"down\", whose weight [6, 10] is split along dimension 1 over 2 "
      "ranks, was given an input of shape [4, 10], but its last dimension "
      "should be 5");
  expect_refused<GatheredMlp>(
      {{"layers.0", ColwiseParallel{}}, {"layers.1", ColwiseParallel{}}},
      "layer \"layers.1\"");
}

TEST(TensorParallel, NamesTheLayerBeforeAViewWithGlobalSizes) {
  expect_refused<Gpt>(
      {{"qkv", ColwiseParallel{}}},
      "layer \"qkv\" is split over 2 ranks, and returned [4, 5, 12] where one "
      "process returns [4, 5, 24]");
}

/// Reads a weight outside a product.
struct Decayed : Mlp {
  Tensor forward(const Tensor& x) {
    return Mlp::forward(x) + up->weight.pow(2).sum();
  }
};

TEST(TensorParallel, RefusesOperatorsThatNeedTheFullWeight) {
  expect_refused<Decayed>(
      Mlp::plan(), "aten::pow takes \"up.weight\" of shape [10, 6]");
}

TEST(TensorParallel, RefusesIndicesBeyondTheVocabulary) {
  struct Beyond : Gpt {
    static Tensor inputs(int, int) { return torch::full({4, 5}, 11); }
  };
  expect_refused<Beyond>(
      Gpt::plan(), "embedding \"tokens\" of 11 rows got indices");
}

TEST(TensorParallel, NeedsAPlan) {
  expect_error<ConfigError>(
      [] {
        run_on_ranks(2, [](const WorldOptions& world) {
          const Accelerator accelerator(
              {.parallel = {.tensor = 2}, .world = world});
        });
      },
      "tensor was asked for, but nothing says which layers are split");
}

TEST(TensorParallel, RefusesAModelThatIsSplitAlready) {
  expect_error<ConfigError>(
      [] {
        run_on_ranks(2, [](const WorldOptions& world) {
          const Accelerator accelerator(
              options_on({.tensor = 2}, Mlp::plan(), world));
          const auto net = std::make_shared<Mlp>();
          { const auto model = accelerator.prepare(net); }
          accelerator.free_memory();
          const auto again = accelerator.prepare(net);
        });
      },
      "build the model again");
}

TEST(TensorParallel, LeavesModelsWithAnEmptyPlanWhole) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        options_on({.tensor = 2}, Mlp::plan(), world));
    const auto split = std::make_shared<Mlp>();
    const auto whole = std::make_shared<Mlp>();
    const auto models = accelerator.prepare(
        split, with_options(whole, {.parallelize_plan = ParallelizePlan{}}));
    EXPECT_EQ(split->up->weight.size(0), 5);
    EXPECT_EQ(whole->up->weight.size(0), 10);
    const Tensor x = Mlp::inputs(0, 1);
    EXPECT_TRUE(torch::allclose(
        std::get<0>(models)(x), std::get<1>(models)(x), 1e-5, 1e-6));
  });
}

// Logits that are not gathered, and the loss of their slices.
TEST(TensorParallel, LeavesLogitsSplit) {
  const Tensor x = Gpt::inputs(0, 1);
  const Tensor targets = Gpt::inputs(1, 1);
  const auto alone = std::make_shared<Gpt>();
  const Tensor expected = nn::functional::cross_entropy(
      alone->forward(x).view({-1, Gpt::kTokens}), targets.view(-1));
  expected.backward();
  const Tensor gradient = alone->tokens->weight.grad();
  ParallelizePlan plan = Gpt::plan();
  plan.front() = {"tokens", RowwiseParallel{.logits_layouts = Shard{-1}}};
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(options_on({.tensor = 2}, plan, world));
    const auto net = std::make_shared<Gpt>();
    const auto model = accelerator.prepare(net);
    const Tensor logits = model(x);
    const std::int64_t rows = accelerator.process_index() == 0 ? 5 : 6;
    EXPECT_EQ(logits.size(-1), rows);
    const Tensor loss = parallel_cross_entropy(
        logits, targets, accelerator.mesh().group(Axis::tensor));
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
    accelerator.backward(loss);
    const std::int64_t begin = accelerator.process_index() * 5;
    EXPECT_TRUE(torch::allclose(
        net->tokens->weight.grad(),
        gradient.narrow(0, begin, rows),
        1e-5,
        1e-6));
    EXPECT_TRUE(torch::allclose(
        net->positions->weight.grad(),
        alone->positions->weight.grad(),
        1e-5,
        1e-6));
  });
}

TEST(TensorParallel, UnshardsAllAxes) {
  const Weights full = named(get_state_dict(*std::make_shared<Gpt>()));
  for (const Grid& grid : {Grid{.tensor = 3}, Grid{.shard = 2, .tensor = 2}}) {
    run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
      const Accelerator accelerator(options_on(grid, Gpt::plan(), world));
      const auto net = std::make_shared<Gpt>();
      const auto model = accelerator.prepare(net);
      const Tensor x = Gpt::inputs(0, 1);
      const torch::NoGradGuard no_grad;
      const Tensor before = model(x);
      {
        const auto scope = model.full_parameters();
        expect_equal(named(get_state_dict(*net)), full);
        net->tokens->weight.mul_(2);
      }
      Weights changed = full;
      changed["tokens.weight"] = full.at("tokens.weight") * 2;
      expect_equal(
          named(accelerator.get_state_dict(model, {.rank0_only = false})),
          changed);
      EXPECT_FALSE(torch::allclose(model(x), before));
    });
  }
}

// The backward in which layers take their inputs again may be the program's.
TEST(TensorParallel, ForgetsTheInputsOfRecomputedLayers) {
  for (const bool is_plain : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      auto options = options_on({.tensor = 2}, GatheredMlp::plan(), world);
      options.parallel.activation_checkpointing =
          ActivationCheckpointingOptions{
              .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
              .min_num_params = 20};
      const Accelerator accelerator(options);
      const auto model = accelerator.prepare(std::make_shared<GatheredMlp>());
      const Tensor x = GatheredMlp::inputs(0, 1);
      const auto num_owners = x.storage().use_count();
      const Tensor loss = loss_of(model(x));
      if (is_plain) {
        loss.backward();
      } else {
        accelerator.backward(loss);
      }
      EXPECT_EQ(x.storage().use_count(), num_owners) << is_plain;
    });
  }
}

// Adagrad makes its state in its constructor, for the full parameters.
TEST(TensorParallel, StepsByAdagrad) {
  const auto alone = std::make_shared<Mlp>();
  torch::optim::Adagrad plain(alone->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    plain.zero_grad();
    loss_of(alone->forward(Mlp::inputs(step, 1))).backward();
    plain.step();
  }
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        options_on({.tensor = 2}, Mlp::plan(), world));
    const auto net = std::make_shared<Mlp>();
    torch::optim::Adagrad inner(net->parameters(), 0.1);
    const auto [model, optimizer] = accelerator.prepare(net, inner);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      accelerator.backward(loss_of(model(Mlp::inputs(step, 1))));
      optimizer.step();
    }
    expect_near(
        named(accelerator.get_state_dict(model, {.rank0_only = false})),
        named(get_state_dict(*alone)));
  });
}

}  // namespace tensor_parallel_test
}  // namespace accelerate
