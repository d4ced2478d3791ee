// Dropout in models whose layers and sequences are divided: independent masks
// for slices, and the same mask for tensors that every rank has. Ranks are
// processes, since each process has its own random generator.
#include <accelerate/accelerate.h>

#include <memory>
#include <optional>
#include <vector>

#include <accelerate/adapters.h>
#include <accelerate/launch.h>

namespace accelerate {
namespace region_dropout_test {

using torch::Tensor;
namespace nn = torch::nn;

constexpr std::int64_t kWidth = 64, kBatch = 8, kTime = 16;

void require(bool is_true, const char* what) {
  if (!is_true) throw Error(std::string("[tests] not true: ") + what);
}

// Runs `rank` in processes of this program, which get here by --gtest_filter.
void run_on_processes(int num_processes, const std::function<void()>& rank) {
  const auto* const info =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string test =
      std::string(info->test_suite_name()) + "." + info->name();
  launch_function(
      rank,
      {.num_processes = num_processes,
       .name = test,
       .cpu = true,
       .arguments = std::vector<std::string>{
           "--gtest_brief=1", "--gtest_filter=" + test}});
}

/// Remembers which elements were dropped (0) or kept (1).
struct Mask {
  Tensor of(const Tensor& x) {
    const Tensor y = torch::dropout(torch::ones_like(x), 0.5, true);
    seen = y.detach().gt(0).to(torch::kFloat);
    return x * y;
  }
  Tensor seen;
};

/// A feed-forward with dropout on slices and on full outputs; its norm runs on
/// slices of the sequence if the plan says so.
struct Block : nn::Module {
  Block() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = norm(sequence.of(first(x)));
    y = y + outside.of(down(inside.of(torch::gelu(up(y)))));
    return last(y);
  }
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  nn::Linear first{kWidth, kWidth}, up{kWidth, 4 * kWidth},
      down{4 * kWidth, kWidth}, last{kWidth, kWidth};
  Mask sequence, inside, outside;
};

ParallelizePlan feature_plan() {
  return {{"up", ColwiseParallel{}}, {"down", RowwiseParallel{}}};
}

ParallelizePlan sequence_plan() {
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

// The same slices, between layers that are not split.
ParallelizePlan prepared_plan() {
  return {
      {"first", PrepareModuleOutput{Replicate{}, Shard{1}}},
      {"norm", SequenceParallel{}},
      {"up", ColwiseParallel{.input_layouts = Shard{1}}},
      {"down", RowwiseParallel{.output_layouts = Shard{1}}},
      {"last", PrepareModuleInput{Shard{1}, Replicate{}}}};
}

double correlation(const Tensor& a, const Tensor& b) {
  const Tensor x = a - a.mean(), y = b - b.mean();
  return ((x * y).mean() / (x.std() * y.std())).item<double>();
}

void require_independent(
    const Group& group,
    const Mask& mask,
    const char* what) {
  const std::vector<Tensor> all = group.all_gather(mask.seen);
  const double bound = 5 / std::sqrt(static_cast<double>(all[0].numel()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      require(std::abs(correlation(all[i], all[j])) < bound, what);
    require(std::abs(all[i].mean().item<double>() - 0.5) < bound, what);
  }
}

void require_same(const Group& group, const Tensor& tensor, const char* what) {
  for (const Tensor& each : group.all_gather(tensor))
    require(torch::equal(each, tensor), what);
}

void train_block(const ParallelizePlan& plan, bool recomputes) {
  AcceleratorOptions options{
      .parallel = {.tensor = 2, .parallelize_plan = plan}};
  if (recomputes) {
    options.parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
        .min_num_params = 100};
  }
  const Accelerator accelerator(options);
  const bool has_sequence_slices = plan.size() > 2;
  torch::manual_seed(11);
  const auto net = std::make_shared<Block>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto [model, optimizer] = accelerator.prepare(net, sgd);
  const Group& group = accelerator.mesh().group(Axis::tensor);
  Tensor before = torch::zeros({1});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor loss =
        model(torch::randn({kBatch, kTime, kWidth})).pow(2).mean();
    require_independent(group, net->inside, "features");
    require(!torch::equal(net->inside.seen, before), "another mask each step");
    before = net->inside.seen;
    if (has_sequence_slices) {
      require_independent(group, net->sequence, "sequences");
      require_independent(group, net->outside, "sequences after a layer");
      // Two layers do not use the same mask.
      require(
          !torch::equal(net->sequence.seen, net->outside.seen), "two layers");
    } else {
      require_same(group, net->sequence.seen, "before the layers");
      require_same(group, net->outside.seen, "after the layers");
    }
    require_same(group, loss.detach(), "losses");
    accelerator.backward(loss);
    optimizer.step();
    require_same(group, net->norm->weight.detach(), "norms");
    require_same(group, torch::rand({5}), "numbers outside of the model");
  }
}

TEST(RegionDropout, IsIndependentBetweenLayersAndTheSameOutside) {
  run_on_processes(2, [] { train_block(feature_plan(), false); });
}

TEST(RegionDropout, IsIndependentOnSlicesOfTheSequence) {
  run_on_processes(2, [] { train_block(sequence_plan(), false); });
}

TEST(RegionDropout, IsIndependentOnSlicesBetweenPreparedLayers) {
  run_on_processes(2, [] { train_block(prepared_plan(), false); });
  run_on_processes(2, [] { train_block(prepared_plan(), true); });
}

/// Two layers, whose adapters alone return something.
struct Adapted : nn::Module {
  Adapted() {
    register_module("up", up);
    register_module("down", down);
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : parameters()) parameter.zero_();
  }
  Tensor forward(const Tensor& x) {
    sums = up(x);
    return down(torch::ones_like(sums));
  }
  nn::Linear up{kWidth, kWidth}, down{kWidth, kWidth};
  Tensor sums;
};

// `up` returns the number of kept elements of its input in each column, `down`
// the mask of its own.
TEST(RegionDropout, OfAdaptersIsThatOfTheInput) {
  run_on_processes(2, [] {
    const Accelerator accelerator(
        {.parallel = {.tensor = 2, .parallelize_plan = feature_plan()}});
    torch::manual_seed(11);
    const auto net = std::make_shared<Adapted>();
    add_adapters(
        net,
        {.rank = kWidth,
         .alpha = kWidth,
         .target_modules = {"up", "down"},
         .dropout = 0.5});
    {
      const torch::NoGradGuard no_grad;
      auto named = net->named_parameters();
      for (const char* layer : {"up", "down"})
        named[std::string(layer) + ".lora_A.default.weight"].copy_(
            torch::eye(kWidth));
      named["up.lora_B.default.weight"].fill_(1);
      named["down.lora_B.default.weight"].copy_(torch::eye(kWidth));
    }
    const auto model = accelerator.prepare(net);
    const Group& group = accelerator.mesh().group(Axis::tensor);
    Tensor before = torch::zeros({1});
    for (int step = 0; step < 3; ++step) {
      const Tensor result =
          model(torch::ones({kBatch, kTime, kWidth})).detach();
      require_same(group, net->sums.detach(), "masks of an input of all ranks");
      require(net->sums.std().item<double>() > 1, "elements are dropped");
      require_same(group, result, "results");
      const std::vector<Tensor> halves =
          result.gt(0).to(at::kFloat).chunk(2, -1);
      require(
          std::abs(correlation(halves[0], halves[1])) < 0.1,
          "masks of slices are independent");
      require(
          std::abs(halves[0].mean().item<double>() - 0.5) < 0.1,
          "half of a slice is dropped");
      require(!torch::equal(result, before), "another mask each step");
      before = result;
    }
    net->eval();
    require(
        torch::equal(
            model(torch::ones({kBatch, kTime, kWidth})).detach(),
            torch::ones({kBatch, kTime, kWidth})),
        "eval() drops nothing");
  });
}

// The input's gradient shows the masks of the backward: it must be the one
// computed from the masks of the forward.
TEST(RegionDropout, SurvivesRecomputation) {
  run_on_processes(2, [] {
    std::vector<std::vector<Tensor>> grads;
    for (const bool recomputes : {false, true}) {
      AcceleratorOptions options{
          .parallel = {.tensor = 2, .parallelize_plan = sequence_plan()}};
      if (recomputes) {
        options.parallel.activation_checkpointing =
            ActivationCheckpointingOptions{
                .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
                .min_num_params = 100};
      }
      const Accelerator accelerator(options);
      torch::manual_seed(11);
      const auto net = std::make_shared<Block>();
      const auto model = accelerator.prepare(net);
      accelerator.backward(
          model(torch::randn({kBatch, kTime, kWidth})).pow(2).mean());
      grads.emplace_back();
      for (const Tensor& parameter : net->parameters())
        grads.back().push_back(parameter.grad().clone());
      train_block(feature_plan(), recomputes);
    }
    for (std::size_t i = 0; i < grads[0].size(); ++i)
      require(torch::equal(grads[0][i], grads[1][i]), "gradients");
  });
}

std::shared_ptr<nn::TransformerEncoderImpl> make_encoder() {
  return std::make_shared<nn::TransformerEncoderImpl>(
      nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(kWidth, 4)
                                      .dim_feedforward(kWidth)
                                      .dropout(0.5)),
      3);
}

// Gradients of an encoder with dropout in the attention and between layers.
// With `exchanges_heads`, ranks divide its sequences: by exchanging heads if
// true, by a ring if false.
std::vector<Tensor> gradients_of_encoder(
    ParallelOptions parallel,
    bool recomputes,
    std::optional<bool> exchanges_heads = std::nullopt) {
  torch::manual_seed(11);
  const auto net = make_encoder();
  if (recomputes) {
    parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
        .min_num_params = 100};
  }
  const Accelerator accelerator({.parallel = parallel});
  const auto model = accelerator.prepare(net);
  const Tensor x = torch::randn({kTime, kBatch, kWidth});
  std::optional<ContextParallelScope> sequence;
  if (exchanges_heads) {
    sequence.emplace(accelerator.maybe_context_parallel(
        {x}, {0}, {}, {.exchange_heads = exchanges_heads}));
  }
  const Tensor loss = model(x).pow(4).mean();
  accelerator.backward(loss);
  if (!exchanges_heads) {
    const Group& group = accelerator.mesh().group(Axis::tensor);
    require_same(group, loss.detach(), "losses");
    require_same(group, torch::rand({5}), "numbers outside of the model");
  }
  std::vector<Tensor> grads;
  for (const Tensor& parameter : net->parameters()) {
    require(parameter.grad().abs().max().item<double>() > 0, "a gradient");
    grads.push_back(parameter.grad().clone());
  }
  return grads;
}

void require_same_gradients(
    const std::vector<Tensor>& found,
    const std::vector<Tensor>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    require(torch::equal(found[i], expected[i]), "gradients");
}

// All ranks have the same loss and then draw the same numbers outside the
// model; recomputation gives the same gradients.
TEST(RegionDropout, IsRepeatedInAttentionByHeads) {
  run_on_processes(2, [] {
    for (const bool has_slices : {false, true}) {
      const ParallelOptions parallel{
          .tensor = 2,
          .parallelize_plan =
              infer_parallelize_plan(*make_encoder(), 2, has_slices).plan};
      require_same_gradients(
          gradients_of_encoder(parallel, true),
          gradients_of_encoder(parallel, false));
    }
  });
}

/// Attention whose heads do not divide among the ranks, so that they draw
/// different amounts of numbers, followed by dropout of a tensor that every
/// rank has.
struct Reader : nn::Module {
  explicit Reader(std::int64_t width_of_keys)
      : attention(nn::MultiheadAttentionOptions(48, 3)
                      .kdim(width_of_keys)
                      .vdim(width_of_keys)
                      .dropout(0.5)),
        width(width_of_keys) {
    register_module("attention", attention);
  }
  Tensor forward(const Tensor& x) {
    const Tensor keys = x.narrow(-1, 0, width);
    return torch::dropout(
        std::get<0>(attention(x.narrow(-1, 0, 48), keys, keys)),
        0.5,
        is_training());
  }
  nn::MultiheadAttention attention;
  std::int64_t width;
};

// The output projection takes split heads or is not split; input projections
// are one weight or several.
TEST(RegionDropout, EndsWithTheHeadsOfAttention) {
  run_on_processes(2, [] {
    for (const std::int64_t width : {48, 32}) {
      for (const bool is_whole : {false, true}) {
        ParallelizePlan plan{{"attention", ColwiseParallel{}}};
        if (!is_whole)
          plan.emplace_back("attention.out_proj", RowwiseParallel{});
        torch::manual_seed(11);
        const Accelerator accelerator(
            {.parallel = {.tensor = 2, .parallelize_plan = plan}});
        const auto model = accelerator.prepare(std::make_shared<Reader>(width));
        const Group& group = accelerator.mesh().group(Axis::tensor);
        const Tensor output = model(torch::randn({kTime, kBatch, kWidth}));
        require_same(group, output.detach(), "outputs");
        require_same(group, torch::rand({5}), "numbers outside of the model");
      }
    }
  });
}

TEST(RegionDropout, IsRepeatedInAttentionThatIsExchanged) {
  run_on_processes(2, [] {
    for (const bool exchanges_heads : {false, true}) {
      const ParallelOptions parallel{.context = 2};
      require_same_gradients(
          gradients_of_encoder(parallel, true, exchanges_heads),
          gradients_of_encoder(parallel, false, exchanges_heads));
    }
  });
}

TEST(RegionDropout, IsIndependentOnPositionsOfASequence) {
  run_on_processes(4, [] {
    const Accelerator accelerator(
        {.parallel = {
             .tensor = 2, .context = 2, .parallelize_plan = feature_plan()}});
    torch::manual_seed(11);
    const auto net = std::make_shared<Block>();
    const auto model = accelerator.prepare(net);
    const Tensor x = torch::randn({kBatch, 2 * kTime, kWidth});
    Tensor attended;
    {
      const auto scope = accelerator.maybe_context_parallel({x}, {1});
      const Tensor loss = model(x).pow(2).mean();
      require_independent(
          accelerator.mesh().group({Axis::context, Axis::tensor}),
          net->inside,
          "features of positions");
      const Group& positions = accelerator.mesh().group(Axis::context);
      require_independent(positions, net->outside, "positions");
      require_same(
          accelerator.mesh().group(Axis::tensor),
          net->outside.seen,
          "positions on tensor-parallel ranks");
      accelerator.backward(loss);
      // Attention's own dropout uses one mask over all positions.
      const Tensor heads = x.unflatten(-1, {4, -1}).transpose(1, 2);
      attended = at::scaled_dot_product_attention(
          heads, heads, heads, std::nullopt, 0.5);
    }
    require_same(
        accelerator.mesh().group(Axis::tensor), attended, "shared heads");
    require_same(
        accelerator.mesh().world().group(), torch::rand({5}), "outside");
  });
}

}  // namespace region_dropout_test
}  // namespace accelerate
