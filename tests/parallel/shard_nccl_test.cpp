// Shards that travel from device to device, by collectives of a stand-in for
// NCCL. Memory that nothing waited for is garbage there.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <accelerate/accelerate.h>

#include "comm/mesh.h"
#include "parallel/shard/device_traffic.h"
#include "parallel/shard/shard.h"
#include "support/device_sharding.h"
#include "support/expect_error.h"
#include "support/nccl_ranks.h"
#include "support/pretend_device.h"
#include "train/models/model_values.h"

namespace accelerate::detail {
namespace shard_nccl_test {

using testing::run_in_nccl_worlds;
using testing::run_on_nccl_ranks;
using torch::Tensor;
namespace nn = torch::nn;

// Small and large parameters; of numbers of rows that ranks divide and that they
// do not; one for the first two ranks only. `second` is used on request, by
// its block or again by a later one.
struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t hidden)
      : first(register_module("first", nn::Linear(96, hidden))),
        second(register_module("second", nn::Linear(hidden, 96))),
        norm(
            register_module("norm", nn::LayerNorm(nn::LayerNormOptions({96})))),
        scale(register_parameter("scale", torch::ones({2, 3}))) {}
  Tensor forward(const Tensor& x, bool uses_second) {
    const Tensor h = torch::tanh(first(norm(x)));
    const Tensor y = uses_second ? second(h) : h.narrow(1, 0, 96);
    return x + y * scale.mean();
  }
  nn::Linear first, second;
  nn::LayerNorm norm;
  Tensor scale;
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  explicit NetImpl(int num_blocks) {
    for (int i = 0; i < num_blocks; ++i)
      blocks->push_back(Block(i % 2 == 0 ? 120 : 101));
    register_module("blocks", blocks);
    head = register_module("head", nn::Linear(96, 96));
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (Tensor& parameter : parameters()) {
      parameter.copy_(
          (torch::sin(torch::arange(parameter.numel()) + 37 * number++) * 0.1)
              .view(parameter.sizes()));
    }
  }
  nn::ModuleList blocks;
  nn::Linear head = nullptr;
};
TORCH_MODULE(Net);

// One step of a rank: `block` runs one of the net's.
using RunBlock = std::function<Tensor(std::size_t block, const Tensor&, bool)>;
using Forward =
    std::function<Tensor(int rank, int step, Tensor, const RunBlock&)>;

Tensor use_all(int, int, Tensor h, const RunBlock& block) {
  for (std::size_t i = 0; i < 3; ++i) h = block(i, h, true);
  return h;
}

struct Training {
  ShardOptions options = {};
  Forward forward = &use_all;
  int num_blocks = 3;
  int num_steps = 3;
  /// Backwards of a step; only the last one reduces.
  int num_backwards = 1;
  bool is_half = false;
  bool freezes = false;
};

Mesh mesh_of_shards(const World& world) {
  std::array<int, kNumAxes> degrees{};
  degrees.fill(1);
  degrees[static_cast<std::size_t>(Axis::shard)] = world.size();
  return {world, degrees};
}

// A sharded net and what a step of it does.
class Trained {
 public:
  Trained(
      const World& world,
      const Training& training,
      const MakeShardTraffic& make_traffic)
      : Trained(mesh_of_shards(world), training, make_traffic) {}
  Trained(
      const Mesh& mesh,
      const Training& training,
      const MakeShardTraffic& make_traffic)
      : world_(mesh.world()),
        training_(training),
        net_(training.num_blocks),
        shard_(make_shard(mesh, training.options, make_traffic)) {
    move_to_device(*net_, world_.device());
    if (training.is_half) net_->blocks[1]->to(at::kBFloat16);
    if (training.freezes) {
      net_->blocks[0]->as<Block>()->first->weight.requires_grad_(false);
      net_->blocks[2]->as<Block>()->second->bias.requires_grad_(false);
    }
    table_.emplace(*net_);
    shard_->prepare(*net_, *table_);
  }

  Tensor forward(int step) {
    const int rank = world_.rank();
    const Tensor x = torch::sin(
        torch::arange(
            4 * 96, at::TensorOptions(world_.device()).dtype(at::kFloat))
            .view({4, 96}) +
        step + 7 * rank);
    const auto block = [&](std::size_t i, const Tensor& h, bool uses_second) {
      return run_block(i, h, uses_second);
    };
    shard_->before_forward();
    const Tensor h = training_.forward(rank, step, x, block);
    const Tensor loss = net_->head(h.to(net_->head->weight.scalar_type()))
                            .to(at::kFloat)
                            .pow(2)
                            .mean();
    shard_->after_forward({});
    return loss;
  }
  Tensor run_block(std::size_t i, const Tensor& h, bool uses_second) {
    auto& module = *net_->blocks[i]->as<Block>();
    const Tensor in = module.scale.scalar_type() == at::kFloat
        ? h
        : h.to(module.scale.scalar_type());
    return module.forward(in, uses_second).to(at::kFloat);
  }
  void backward(const Tensor& loss, bool sync_gradients) {
    shard_->before_backward(sync_gradients, loss);
    loss.backward();
    shard_->after_backward(sync_gradients);
  }
  // Returns whether each parameter had a gradient.
  std::vector<bool> descend() {
    std::vector<bool> had;
    const torch::NoGradGuard no_grad;
    for (const Parameter& row : table_->rows()) {
      const Tensor gradient = row.local.grad();
      had.push_back(gradient.defined());
      if (gradient.defined()) row.local.sub_(gradient.to(row.local.dtype()));
      row.local.mutable_grad().reset();
    }
    shard_->after_step();
    return had;
  }
  void step(int number) {
    for (int i = 0; i < training_.num_backwards; ++i) {
      const Tensor loss = forward(10 * number + i);
      backward(loss, /*sync_gradients=*/i + 1 == training_.num_backwards);
    }
    had_gradients.push_back(descend());
  }
  [[nodiscard]] std::vector<Tensor> shards() const {
    std::vector<Tensor> values;
    for (const Parameter& row : table_->rows())
      values.push_back(row.local.detach().cpu().clone());
    return values;
  }
  [[nodiscard]] Strategy& strategy() const { return *shard_; }
  [[nodiscard]] const ParameterTable& table() const { return *table_; }

  std::vector<std::vector<bool>> had_gradients = {};

 private:
  World world_;
  Training training_;
  Net net_;
  std::unique_ptr<Strategy> shard_;
  std::optional<ParameterTable> table_;
};

// Trains over the host, then from device to device; both end with equal shards,
// and gave gradients to the same parameters.
void expect_same_as_over_host(int num_ranks, const Training& training) {
  run_in_nccl_worlds(num_ranks, [&](const World& world) {
    Trained host(world, training, &make_host_traffic);
    Trained device(world, training, &make_shard_traffic);
    const bool rounds = training.is_half || training.options.reduce_dtype;
    for (int step = 0; step < training.num_steps; ++step) {
      host.step(step);
      device.step(step);
    }
    EXPECT_EQ(host.had_gradients, device.had_gradients);
    const auto expected = host.shards(), found = device.shards();
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(
          rounds ? torch::allclose(found[i], expected[i], 1e-2, 1e-2)
                 : torch::equal(found[i], expected[i]))
          << device.table().rows()[i].name << " of rank " << world.rank()
          << " differs by "
          << (found[i] - expected[i]).abs().max().item<double>();
    }
  });
}

TEST(ShardOverNccl, IsChosenWhereDevicesAreConnected) {
  run_in_nccl_worlds(2, [](const World& world) {
    const auto traffic = make_shard_traffic(
        mesh_of_shards(world), Group(), std::make_shared<BlockPool>());
    EXPECT_TRUE(traffic->has_one_order());
  });
  testing::pretend_device();
  testing::run_in_worlds(2, [](const World& world) {
    const auto traffic = make_shard_traffic(
        mesh_of_shards(world), Group(), std::make_shared<BlockPool>());
    EXPECT_FALSE(traffic->has_one_order());
  });
}

TEST(ShardOverNccl, EqualsShardsOverTheHostBitForBit) {
  for (const int num_ranks : {2, 3, 4}) {
    SCOPED_TRACE(num_ranks);
    expect_same_as_over_host(num_ranks, {});
  }
}

std::vector<Tensor> matrices_of(const nn::Module& module) {
  std::vector<Tensor> found;
  for (const Tensor& parameter : module.parameters()) {
    if (parameter.size(0) > 90 && parameter.dim() == 2)
      found.push_back(parameter);
  }
  return found;
}

TEST(ShardOverNccl, TakesEveryOptionOfSharding) {
  const std::map<std::string, Training> trainings{
      {"until backward", {.options = {.reshards_after_forward = false}}},
      {"gradients alone", {.options = {.shards_parameters = false}}},
      {"offloaded", {.options = {.offloads_shards = true}}},
      {"offloaded, in several backwards",
       {.options = {.reduces_every_backward = true, .offloads_shards = true},
        .num_backwards = 3}},
      {"several backwards", {.num_backwards = 3}},
      {"reduced in every backward",
       {.options = {.reduces_every_backward = true}, .num_backwards = 2}},
      {"two units ahead", {.options = {.prefetch_depth = 2}}},
      {"no prefetching",
       {.options =
            {.prefetches_forward = false, .prefetches_backward = false}}},
      {"prefetching late", {.options = {.prefetches_after_gradients = true}}},
      {"frozen parameters", {.freezes = true}},
      {"two dtypes", {.is_half = true}},
      {"master weights",
       {.options = {.param_dtype = at::kBFloat16}, .is_half = true}},
      {"gathered in float8",
       {.options = {.float8 = Float8Gather{{}, &matrices_of}}}},
      {"reduced in bf16", {.options = {.reduce_dtype = at::kBFloat16}}},
      {"reduced in fp16", {.options = {.reduce_dtype = at::kHalf}}},
  };
  for (const auto& [name, training] : trainings) {
    SCOPED_TRACE(name);
    expect_same_as_over_host(3, training);
  }
}

TEST(ShardOverNccl, GathersInReshardGroups) {
  expect_same_as_over_host(4, {.options = {.reshard_group_size = 2}});
}

// A block runs twice, some ranks skip a layer, and one step uses it nowhere.
TEST(ShardOverNccl, TakesDifferentParametersOnDifferentRanks) {
  const auto forward = [](int rank, int step, Tensor h, const RunBlock& block) {
    for (std::size_t i = 0; i < 6; ++i)
      h = block(i, h, i == 5 ? step < 2 && rank == 0 : (rank + step) % 3 > 0);
    return block(1, h, rank == 1);
  };
  for (const bool shards_parameters : {true, false}) {
    for (const int num_ranks : {2, 3}) {
      expect_same_as_over_host(
          num_ranks,
          {.options = {.shards_parameters = shards_parameters},
           .forward = forward,
           .num_blocks = 6});
    }
  }
}

// Two models alternate in one backward. Ranks use a layer of one of them in
// different places.
std::vector<Tensor> train_two(
    const World& world,
    const MakeShardTraffic& make_traffic) {
  const Mesh mesh = mesh_of_shards(world);
  Trained second(mesh, {}, make_traffic);
  const auto forward = [&](int rank, int, Tensor h, const RunBlock& block) {
    second.strategy().before_forward();
    for (std::size_t i = 0; i < 3; ++i) {
      h = block(i, h, i != 1 || rank == 1);
      h = second.run_block(i, h, true);
    }
    second.strategy().after_forward({});
    return block(1, h, rank == 0);
  };
  Trained first(mesh, {.forward = forward}, make_traffic);
  for (int step = 0; step < 3; ++step) {
    const Tensor loss = first.forward(step);
    second.strategy().before_backward(true, loss);
    first.backward(loss, true);
    second.strategy().after_backward(true);
    first.descend();
    second.descend();
  }
  std::vector<Tensor> shards = first.shards();
  for (const Tensor& shard : second.shards()) shards.push_back(shard);
  return shards;
}

TEST(ShardOverNccl, ReducesTwoModelsInOneBackward) {
  run_in_nccl_worlds(2, [](const World& world) {
    const auto expected = train_two(world, &make_host_traffic);
    const auto found = train_two(world, &make_shard_traffic);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(torch::equal(found[i], expected[i])) << "parameter " << i;
  });
}

// Units run in another order than the model lists them, and one not at all.
TEST(ShardOverNccl, TakesUnitsInAnyOrder) {
  expect_same_as_over_host(
      2,
      {.forward =
           [](int, int, Tensor h, const RunBlock& block) {
             for (const std::size_t i : {3, 0, 2}) h = block(i, h, true);
             return h;
           },
       .num_blocks = 4});
}

TEST(ShardOverNccl, HasTheHostWaitForNothingInAStep) {
  run_in_nccl_worlds(2, [](const World& world) {
    Trained trained(world, {}, &make_shard_traffic);
    trained.step(0);
    world.group().barrier();
    const auto before = testing::pretend_counts();
    world.group().barrier();
    for (int step = 1; step < 3; ++step) trained.step(step);
    world.group().barrier();
    const auto after = testing::pretend_counts();
    EXPECT_EQ(after.host_waits, before.host_waits);
    EXPECT_EQ(after.recorded, before.recorded);
    world.group().barrier();
  });
}

TEST(ShardOverNccl, StartsTheGathersOfAUnitTogether) {
  run_in_nccl_worlds(2, [](const World& world) {
    Trained trained(world, {}, &make_shard_traffic);
    trained.step(0);
    world.group().barrier();
    const int before = testing::num_nccl_starts();
    world.group().barrier();
    {
      const torch::NoGradGuard no_grad;
      trained.forward(1);
    }
    world.group().barrier();
    // Three blocks, and the rest.
    EXPECT_EQ(testing::num_nccl_starts() - before, 4 * world.size());
  });
}

TEST(ShardOverNccl, CopiesOffloadedShardsBesideTheComputation) {
  run_in_nccl_worlds(2, [](const World& world) {
    const c10::Stream computing =
        c10::impl::VirtualGuardImpl(world.device().type())
            .getStream(world.device());
    const auto before = testing::pretend_counts().pinned_copies;
    Trained trained(
        world, {.options = {.offloads_shards = true}}, &make_shard_traffic);
    for (int step = 0; step < 2; ++step) trained.step(step);
    EXPECT_GT(testing::pretend_counts().pinned_copies, before);
    EXPECT_EQ(testing::pretend_pinned_copies(computing), 0);
  });
}

// Bytes of a net whose blocks are used one after another, and the most that a
// step has in use.
struct Usage {
  std::int64_t full = 0, shards = 0, unit = 0, largest = 0;
  std::int64_t activations = 0, peak = 0;
};

Usage usage_of_step(const World& world, const ShardOptions& options) {
  constexpr int kBlocks = 12;
  const Training training{
      .options = options,
      .forward =
          [](int, int, Tensor h, const RunBlock& block) {
            for (std::size_t i = 0; i < kBlocks; ++i) h = block(i, h, true);
            return h;
          },
      .num_blocks = kBlocks};
  Trained trained(world, training, &make_shard_traffic);
  Usage usage;
  for (const Parameter& row : trained.table().rows()) {
    const auto bytes = static_cast<std::int64_t>(
        row.tensor.numel() * row.tensor.element_size());
    usage.full += bytes;
    usage.shards += static_cast<std::int64_t>(row.local.nbytes());
    if (row.name.starts_with("blocks.0.")) usage.unit += bytes;
    usage.largest = std::max(usage.largest, bytes);
  }
  trained.step(0);
  const int device = world.device().index();
  // Each step begins and ends with the shards alone, and the memory of a unit
  // that is kept for the next, or with full parameters.
  testing::take_peak_of_pretend_memory(device);
  trained.step(1);
  usage.peak = testing::take_peak_of_pretend_memory(device);
  usage.activations = std::int64_t{13} * kBlocks * 4 * 120 * 4;
  return usage;
}

TEST(ShardOverNccl, HoldsTwoUnitsAndTheGradientsOnTheirWay) {
  run_in_nccl_worlds(2, [](const World& world) {
    const Usage usage = usage_of_step(world, {});
    const std::int64_t bound = 2 * usage.shards + 2 * usage.unit +
        2 * usage.largest + usage.activations;
    EXPECT_LE(
        static_cast<double>(usage.peak), 1.05 * static_cast<double>(bound));
    EXPECT_GT(usage.peak, 2 * usage.shards + 2 * usage.unit);
  });
}

// Gradients leave while others are computed, though no forward gathers a unit.
// The shards lie in the full parameters, and have gradients at the end.
TEST(ShardOverNccl, HoldsFewGradientsWhereParametersStayFull) {
  run_in_nccl_worlds(2, [](const World& world) {
    const Usage usage = usage_of_step(world, {.shards_parameters = false});
    const std::int64_t bound =
        usage.full + usage.shards + 2 * usage.unit + 2 * usage.largest;
    EXPECT_LE(
        static_cast<double>(usage.peak), 1.05 * static_cast<double>(bound));
    EXPECT_GT(usage.peak, usage.full + usage.shards);
  });
}

TEST(ShardOverNccl, GoesOnAfterAFailedForward) {
  run_in_nccl_worlds(2, [](const World& world) {
    bool fails = false;
    const Training training{
        .forward = [&](int, int, Tensor h, const RunBlock& block) {
          h = block(0, h, true);
          if (fails) throw std::runtime_error("a bug in the program");
          h = block(1, h, true);
          return block(2, h, true);
        }};
    Trained undisturbed(world, training, &make_host_traffic);
    for (int step = 0; step < 3; ++step) undisturbed.step(step);
    Trained trained(world, training, &make_shard_traffic);
    for (int step = 0; step < 3; ++step) {
      if (step > 0) {
        fails = true;
        try {
          trained.forward(step);
          ADD_FAILURE() << "the forward did not fail";
        } catch (const std::runtime_error& error) {
          trained.strategy().on_failure(error);
        }
        fails = false;
      }
      trained.step(step);
    }
    const auto expected = undisturbed.shards(), found = trained.shards();
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(torch::equal(found[i], expected[i])) << "parameter " << i;
  });
}

TEST(ShardOverNccl, EndsWithAnErrorWhenARankIsGone) {
  run_in_nccl_worlds(2, [](const World& world) {
    Trained trained(world, {}, &make_shard_traffic);
    trained.step(0);
    if (world.rank() == 1) return;
    // What follows a failed operation may be garbage until the next call.
    testing::expect_error<DistributedError>(
        [&] {
          for (int step = 1; step < 4; ++step) {
            trained.step(step);
            static_cast<void>(trained.shards());
          }
        },
        "failed on rank 0");
  });
}

TEST(ShardOverNccl, KeepsChangesMadeToOneOfSeveralModels) {
  run_on_nccl_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.fully_sharded = FullyShardedDataParallelOptions()},
         .world = world});
    testing::DeviceNet student, teacher, fresh;
    for (const auto& net : {student, teacher, fresh}) {
      const torch::NoGradGuard no_grad;
      net->factor.fill_(1);
    }
    torch::optim::SGD sgd(student->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer, other] = accelerator.prepare(student, sgd, teacher);
    {
      const auto full = other.full_parameters();
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : teacher->parameters()) parameter.mul_(0.5);
    }
    const Tensor x = torch::ones({2, 96}).to(accelerator.device());
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      Tensor target;
      {
        const torch::NoGradGuard no_grad;
        target = other(x);
      }
      const Tensor loss = (model(x) - target).pow(2).mean();
      losses.push_back(loss.item<double>());
      optimizer.zero_grad();
      accelerator.backward(loss);
      optimizer.step();
    }
    EXPECT_LT(losses[2], losses[1]);
    EXPECT_LT(losses[1], losses[0]);
    const auto full = other.full_parameters();
    for (const auto& item : teacher->named_parameters()) {
      EXPECT_TRUE(torch::equal(
          item.value().detach().cpu(),
          fresh->named_parameters()[item.key()].detach() * 0.5))
          << item.key();
    }
  });
}

TEST(ShardOverNccl, TrainsTheWaysThatAcceleratorsOffer) {
  for (const auto& [name, parallel] : testing::ways_to_train_on_devices()) {
    SCOPED_TRACE(name);
    std::vector<Tensor> expected;
    testing::run_on_ranks(2, [&, way = parallel](const WorldOptions& options) {
      WorldOptions world = options;
      world.device = testing::pretend_device(*options.rank);
      const auto weights = testing::train_device_net(world, way);
      if (world.rank == 0) expected = weights;
    });
    run_on_nccl_ranks(2, [&, way = parallel](const WorldOptions& options) {
      const auto found = testing::train_device_net(options, way);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-5, 1e-6))
            << i << " " << (found[i] - expected[i]).abs().max().item<double>();
      }
    });
  }
}

}  // namespace shard_nccl_test
}  // namespace accelerate::detail
