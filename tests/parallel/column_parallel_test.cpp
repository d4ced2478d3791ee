// A strategy that splits dimension 1 of weights, under `shard`, which splits
// dimension 0: everything that handles shards works with boxes of any kind.
#include "support/column_parallel.h"

#include <map>
#include <set>

#include <accelerate/accelerate.h>

#include "checkpoint/load/checkpoint_reader.h"
#include "checkpoint/load/destinations.h"
#include "support/has_memory.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"
#include "train/accelerator/make_session.h"
#include "train/session/session.h"

namespace accelerate {
namespace column_parallel_test {

using testing::column_parallel;
using testing::ColumnLinear;
using testing::has_memory;
using testing::named;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using testing::Weights;
using torch::Tensor;
namespace nn = torch::nn;

constexpr std::int64_t kBatch = 4;  // of one batch rank
constexpr double kTolerance = 2e-5;

/// A net with odd sizes, layers that are split over columns and others that are
/// not, a scalar and a buffer. Its values are the same each time.
struct Net : nn::Module {
  Net() {
    layers->push_back(ColumnLinear(7, 6));
    layers->push_back(ColumnLinear(6, 5));
    layers->push_back(ColumnLinear(5, 7));
    register_module("layers", layers);
    register_module("norm", norm);
    register_module("head", head);
    scale = register_parameter("scale", torch::ones({}));
    shift = register_buffer("shift", torch::full({3}, 0.25));
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (Tensor& parameter : parameters()) {
      const Tensor values =
          torch::sin(torch::arange(parameter.numel()) + 37 * number++);
      parameter.copy_((values * 0.4).view(parameter.sizes()));
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor h = x;
    for (const auto& layer : *layers)
      h = torch::tanh(layer->as<testing::ColumnLinearImpl>()->forward(h));
    return head(norm(h)) * scale + shift;
  }
  nn::ModuleList layers;
  nn::LayerNorm norm{nn::LayerNormOptions({7})};
  nn::Linear head{7, 3};
  Tensor scale, shift;
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
void PrintTo(const Grid& grid, std::ostream* out) { *out << grid.name(); }

Accelerator accelerator_on(
    const Grid& grid,
    const WorldOptions& world,
    const std::string& prefix = {}) {
  return detail::AcceleratorAccess::make(detail::make_session(
      {.parallel =
           {.replicate = grid.replicate,
            .shard = grid.shard,
            .tensor = grid.tensor},
       .world = world},
      column_parallel(prefix)));
}

torch::optim::AdamWOptions adamw() {
  return torch::optim::AdamWOptions(1e-2).weight_decay(0.1).eps(1e-4);
}

// The batches of all batch ranks in a step, one after another.
Tensor samples(int step, int num_batches) {
  return torch::sin(torch::arange(num_batches * kBatch * 7, torch::kFloat)
                        .mul(0.37)
                        .add(step)
                        .view({-1, 7}));
}

Tensor loss_of(const Tensor& output) { return output.pow(2).mean(); }

void expect_equal(const Weights& found, const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(torch::equal(found.at(name), tensor)) << name;
  }
}

void expect_near(const Weights& found, const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    ASSERT_EQ(found.at(name).sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(torch::allclose(found.at(name), tensor, kTolerance, kTolerance))
        << name << " differs by "
        << (found.at(name) - tensor).abs().max().item<double>();
  }
}

struct Outcome {
  std::vector<double> losses, norms;
  Weights weights;
};

// Trains one process on the batches of all batch ranks.
Outcome train_alone(int num_batches, int num_steps) {
  Outcome outcome;
  const auto net = std::make_shared<Net>();
  torch::optim::AdamW optimizer(net->parameters(), adamw());
  for (int step = 0; step < num_steps; ++step) {
    optimizer.zero_grad();
    const Tensor loss = loss_of(net->forward(samples(step, num_batches)));
    loss.backward();
    outcome.losses.push_back(loss.item<double>());
    outcome.norms.push_back(
        nn::utils::clip_grad_norm_(net->parameters(), 0.05));
    optimizer.step();
  }
  outcome.weights = named(get_state_dict(*net));
  return outcome;
}

// Trains from step `first` to step `last` on this rank.
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
    const Tensor mine = samples(step, mesh.batch_count())
                            .narrow(0, mesh.batch_rank() * kBatch, kBatch);
    const Tensor loss = loss_of(model(mine));
    accelerator.backward(loss);
    outcome.losses.push_back(
        accelerator.reduce(loss.detach(), ReduceOp::mean).item<double>());
    outcome.norms.push_back(
        accelerator.clip_grad_norm_(model, 0.05).item<double>());
    optimizer.step();
  }
}

class ColumnsAndRows : public ::testing::TestWithParam<Grid> {};

INSTANTIATE_TEST_SUITE_P(
    Grids,
    ColumnsAndRows,
    ::testing::Values(
        Grid{1, 2, 2},
        Grid{1, 2, 3},
        Grid{1, 3, 2},
        Grid{1, 1, 2},
        Grid{2, 1, 2},
        Grid{2, 2, 2}),
    [](const auto& each) { return "Grid" + each.param.name(); });

TEST_P(ColumnsAndRows, TrainAsOneProcessDoes) {
  const Grid grid = GetParam();
  const Outcome expected = train_alone(grid.num_batches(), 4);
  run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
    const Accelerator accelerator = accelerator_on(grid, world);
    // Only rank 0 has the initial values.
    const auto net = std::make_shared<Net>();
    if (!accelerator.is_main_process()) {
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : net->parameters()) parameter.add_(1);
      net->shift.add_(1);
    }
    torch::optim::AdamW inner(net->parameters(), adamw());
    const auto [model, optimizer] = accelerator.prepare(net, inner);
    Outcome found;
    train(accelerator, model, optimizer, 0, 4, found);
    for (std::size_t step = 0; step < 4; ++step) {
      EXPECT_NEAR(found.losses[step], expected.losses[step], kTolerance);
      EXPECT_NEAR(
          found.norms[step],
          expected.norms[step],
          kTolerance * expected.norms[step]);
    }
    expect_near(
        named(accelerator.get_state_dict(model, {.rank0_only = false})),
        expected.weights);
  });
}

TEST_P(ColumnsAndRows, HaveTheBoxOfTheirPlace) {
  const Grid grid = GetParam();
  run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
    const Accelerator accelerator = accelerator_on(grid, world);
    const Weights full = named(get_state_dict(*std::make_shared<Net>()));
    const auto model = accelerator.prepare(std::make_shared<Net>());
    const Mesh& mesh = accelerator.mesh();
    const auto begin = [&](Axis axis, std::int64_t size, int more) {
      return size * (mesh.coordinate(axis) + more) / mesh.degree(axis);
    };
    for (const WeightShard& shard : model.state_dict_shards()) {
      const Tensor& all = full.at(shard.name);
      EXPECT_EQ(shard.global_shape, all.sizes().vec()) << shard.name;
      Tensor expected = all;
      std::vector<std::int64_t> offset(static_cast<std::size_t>(all.dim()), 0);
      if (all.dim() > 0 && shard.name != "shift") {
        offset[0] = begin(Axis::shard, all.size(0), 0);
        expected = expected.narrow(
            0, offset[0], begin(Axis::shard, all.size(0), 1) - offset[0]);
      }
      if (all.dim() == 2 && shard.name != "head.weight") {
        offset[1] = begin(Axis::tensor, all.size(1), 0);
        expected = expected.narrow(
            1, offset[1], begin(Axis::tensor, all.size(1), 1) - offset[1]);
      }
      EXPECT_EQ(shard.offset, offset) << shard.name;
      EXPECT_TRUE(torch::equal(shard.tensor, expected)) << shard.name;
    }
  });
}

// A rank that makes its model without memory receives its box of rank 0's
// values.
TEST_P(ColumnsAndRows, BeginWithTheValuesOfRank0) {
  const Grid grid = GetParam();
  run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
    const Accelerator accelerator = accelerator_on(grid, world);
    std::shared_ptr<Net> net;
    if (accelerator.is_main_process()) {
      net = std::make_shared<Net>();
    } else {
      const EmptyWeightsScope empty;
      net = std::make_shared<Net>();
    }
    const auto model = accelerator.prepare(net);
    EXPECT_EQ(has_memory(net->head->weight), grid.shard == 1);
    expect_equal(
        named(accelerator.get_state_dict(model, {.rank0_only = false})),
        named(get_state_dict(*std::make_shared<Net>())));
  });
}

TEST_P(ColumnsAndRows, SaveAndLoadModelsOfOneProcess) {
  const Grid grid = GetParam();
  const TemporaryDirectory directory;
  Weights expected;
  run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
    const Accelerator accelerator = accelerator_on(grid, world);
    const auto net = std::make_shared<Net>();
    torch::optim::AdamW inner(net->parameters(), adamw());
    const auto [model, optimizer] = accelerator.prepare(net, inner);
    Outcome ignored;
    train(accelerator, model, optimizer, 0, 1, ignored);
    accelerator.save_model(model, directory / "full");
    accelerator.save_model(model, directory / "files", {.max_shard_size = 100});
    const Weights mine =
        named(accelerator.get_state_dict(model, {.rank0_only = false}));
    if (accelerator.is_main_process()) expected = mine;
    // In the other direction, every rank reads, or only rank 0 does.
    train(accelerator, model, optimizer, 1, 2, ignored);
    for (const bool is_sent : {false, true}) {
      accelerator.load_model(
          model, directory / "full", {.broadcast_from_rank0 = is_sent});
      expect_equal(
          named(accelerator.get_state_dict(model, {.rank0_only = false})),
          mine);
    }
  });
  for (const char* const name : {"full", "files"}) {
    SCOPED_TRACE(name);
    Net loaded;
    load_model(loaded, directory / name);
    expect_equal(named(get_state_dict(loaded)), expected);
  }
}

// Reads all tensors of a section in full.
Weights read_section(
    const std::filesystem::path& directory,
    const std::string& section) {
  const detail::CheckpointReader checkpoint(directory);
  Weights weights;
  const auto stored = checkpoint.tensors(section);
  for (const auto& [name, tensor] : stored) {
    const std::vector<std::int64_t> shape(
        tensor.shape.begin(), tensor.shape.end());
    weights[name] = torch::zeros(shape);
    detail::read_into(
        stored, {{name, weights[name], detail::Layout::unsharded(shape)}});
  }
  return weights;
}

TEST(ColumnsAndRowsState, GoesFromEveryGridToEveryOther) {
  const std::vector<Grid> grids{
      {1, 1, 1}, {1, 2, 1}, {1, 1, 2}, {1, 2, 2}, {1, 2, 3}, {1, 3, 2}};
  const TemporaryDirectory directory;
  const auto run = [&](const Grid& grid, auto&& body) {
    run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
      const Accelerator accelerator = accelerator_on(grid, world);
      const auto net = std::make_shared<Net>();
      torch::optim::AdamW inner(net->parameters(), adamw());
      const auto [model, optimizer] = accelerator.prepare(net, inner);
      body(accelerator, model, optimizer);
    });
  };
  for (const Grid& from : grids) {
    run(from, [&](const auto& accelerator, auto& model, auto& optimizer) {
      Outcome ignored;
      train(accelerator, model, optimizer, 0, 2, ignored);
      accelerator.save_state(directory / from.name());
    });
    const Weights weights = read_section(directory / from.name(), "model");
    const Weights moments = read_section(directory / from.name(), "optimizer");
    ASSERT_EQ(weights.size(), 12u);
    ASSERT_EQ(moments.size(), 22u);
    EXPECT_EQ(weights.at("layers.1.weight").sizes(), at::IntArrayRef({5, 6}));
    EXPECT_EQ(
        moments.at("layers.1.weight/exp_avg_sq").sizes(),
        at::IntArrayRef({5, 6}));
    for (const Grid& to : grids) {
      SCOPED_TRACE(from.name() + " to " + to.name());
      const auto again = directory / (from.name() + " " + to.name());
      run(to, [&](const auto& accelerator, auto& model, auto& optimizer) {
        Outcome ignored;
        train(accelerator, model, optimizer, 5, 6, ignored);
        accelerator.load_state(directory / from.name());
        accelerator.save_state(again);
      });
      expect_equal(read_section(again, "model"), weights);
      expect_equal(read_section(again, "optimizer"), moments);
    }
  }
}

TEST(ColumnsAndRowsState, HasThePrefixOfTheTable) {
  const TemporaryDirectory directory;
  const auto run = [&](const Grid& grid, auto&& body) {
    run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
      const Accelerator accelerator = accelerator_on(grid, world, "stage_1.");
      const auto net = std::make_shared<Net>();
      torch::optim::AdamW inner(net->parameters(), adamw());
      const auto [model, optimizer] = accelerator.prepare(net, inner);
      body(accelerator, model, optimizer);
    });
  };
  Weights expected;
  run({1, 2, 2}, [&](const auto& accelerator, auto& model, auto& optimizer) {
    Outcome ignored;
    train(accelerator, model, optimizer, 0, 1, ignored);
    accelerator.save_state(directory / "state");
    accelerator.save_model(model, directory / "model");
    const auto weights =
        named(accelerator.get_state_dict(model, {.rank0_only = true}));
    if (accelerator.is_main_process()) expected = weights;
  });
  EXPECT_TRUE(expected.contains("stage_1.layers.0.weight"));
  EXPECT_TRUE(expected.contains("stage_1.shift"));
  const auto in_files = load_state_dict(directory / "model");
  EXPECT_GE(in_files.size(), 12u);
  for (const auto& [name, tensor] : in_files)
    EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name;
  for (const auto& [name, tensor] :
       read_section(directory / "state", "optimizer"))
    EXPECT_TRUE(name.starts_with("stage_1.")) << name;
  run({1, 1, 2}, [&](const auto& accelerator, auto& model, auto&) {
    accelerator.load_state(directory / "state");
    expect_equal(
        named(accelerator.get_state_dict(model, {.rank0_only = false})),
        expected);
    accelerator.load_model(model, directory / "model");
  });
}

TEST_P(ColumnsAndRows, CountEachSampleOnce) {
  const Grid grid = GetParam();
  run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
    const Accelerator accelerator = accelerator_on(grid, world);
    const Mesh& mesh = accelerator.mesh();
    EXPECT_EQ(mesh.batch_group().size(), grid.num_batches());
    EXPECT_EQ(mesh.batch_group().rank(), mesh.batch_rank());
    EXPECT_EQ(mesh.gradient_group().size(), grid.num_batches());
    EXPECT_EQ(mesh.world().size(), grid.num_ranks());

    // The samples do not divide into batches, so the loader fills up the last
    // one.
    const Tensor all = torch::arange(grid.num_batches() * 4 + 1);
    auto loader = accelerator.prepare(
        DataLoader(TensorDataset(all), DataLoaderOptions{.batch_size = 2}));
    std::vector<std::int64_t> tensors, objects;
    for (const auto& [x] : loader) {
      const Tensor gathered = accelerator.gather_for_metrics(x);
      const auto* const values = gathered.const_data_ptr<std::int64_t>();
      tensors.insert(tensors.end(), values, values + gathered.numel());
      std::vector<std::int64_t> mine(
          x.template const_data_ptr<std::int64_t>(),
          x.template const_data_ptr<std::int64_t>() + x.numel());
      const auto joined = accelerator.gather_for_metrics(mine);
      objects.insert(objects.end(), joined.begin(), joined.end());
    }
    std::vector<std::int64_t> expected(
        all.const_data_ptr<std::int64_t>(),
        all.const_data_ptr<std::int64_t>() + all.numel());
    EXPECT_EQ(tensors, expected);
    EXPECT_EQ(objects, expected);

    EXPECT_EQ(
        accelerator.reduce(torch::ones({})).item<int>(), grid.num_batches());
    EXPECT_EQ(
        accelerator.gather(torch::full({1}, mesh.batch_rank())).numel(),
        grid.num_batches());
    const std::vector<int> batch_ranks = gather_object(
        std::vector<int>{mesh.batch_rank()}, accelerator.mesh().batch_group());
    for (int i = 0; i < grid.num_batches(); ++i)
      EXPECT_EQ(batch_ranks.at(static_cast<std::size_t>(i)), i);
    const auto share = accelerator.split_between_processes(expected);
    std::vector<std::int64_t> together =
        gather_object(share, accelerator.mesh().batch_group());
    EXPECT_EQ(together, expected);
    EXPECT_EQ(
        broadcast_object(
            accelerator.process_index(),
            accelerator.world().group(),
            accelerator.num_processes() - 1),
        accelerator.num_processes() - 1);
  });
}

// The weight of a mean over n items is n divided by the number of all items,
// however many ranks share them.
TEST_P(ColumnsAndRows, CountItemsOnce) {
  const Grid grid = GetParam();
  run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
    const Accelerator accelerator = accelerator_on(grid, world);
    const auto net = std::make_shared<Net>();
    torch::optim::SGD inner(net->parameters(), 0.1);
    const auto prepared = accelerator.prepare(net, inner);
    const auto& model = std::get<0>(prepared);
    const auto gradient = [&](std::optional<std::int64_t> num_items) {
      std::get<1>(prepared).zero_grad();
      const Mesh& mesh = accelerator.mesh();
      const Tensor mine = samples(0, mesh.batch_count())
                              .narrow(0, mesh.batch_rank() * kBatch, kBatch);
      accelerator.backward(loss_of(model(mine)), {.num_items = num_items});
      return accelerator.clip_grad_norm_(model, 1e9).template item<double>();
    };
    const double plain = gradient(std::nullopt);
    EXPECT_GT(plain, 0);
    EXPECT_DOUBLE_EQ(gradient(kBatch), plain);
  });
}

}  // namespace column_parallel_test
}  // namespace accelerate
