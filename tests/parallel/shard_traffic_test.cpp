// Sharding over a traffic class that has collectives only: no tags, no
// messages, no memory of its own. Results equal those of host messages bit for
// bit.
#include "parallel/shard/shard_traffic.h"

#include <accelerate/accelerate.h>

#include "comm/mesh.h"
#include "parallel/shard/shard.h"
#include "support/has_memory.h"
#include "support/run_on_ranks.h"

namespace accelerate::detail {
namespace shard_traffic_test {

using testing::run_in_worlds;
using torch::Tensor;
namespace nn = torch::nn;

/// Communicates synchronously, in the start functions.
class CollectiveTraffic : public ShardTraffic {
 public:
  /// `num_reshard_group_gathers` counts gathers in the reshard group.
  CollectiveTraffic(
      const Mesh& mesh,
      Group reshard_group,
      int& num_reshard_group_gathers)
      : group_(mesh.group(Axis::shard)),
        reshard_group_(std::move(reshard_group)),
        num_reshard_group_gathers_(num_reshard_group_gathers) {}

  void add_unit(const UnitShards& unit) override {
    EXPECT_EQ(unit.number, units_.size());
    units_.emplace_back();
  }
  void keep_memory(std::int64_t) override {}
  bool is_sent_alone(const ShardedParameter& parameter) const override {
    return parameter.full.dim() > 1;
  }

  void start_unshard(
      const UnitShards& unit,
      ShardSource source,
      std::vector<Tensor> memory) override {
    const bool from_reshard_group = source == ShardSource::reshard_group;
    num_reshard_group_gathers_ += from_reshard_group ? 1 : 0;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (!memory[i].defined()) continue;
      const ShardedParameter& parameter = unit.parameters[i];
      const auto rows = (from_reshard_group ? reshard_group_ : group_)
                            .all_gather_uneven(
                                from_reshard_group ? parameter.kept_rows
                                                   : parameter.local.detach());
      memory[i].copy_(torch::cat(rows));
    }
    units_[unit.number].memory = std::move(memory);
  }
  std::vector<Tensor> finish_unshard(const UnitShards& unit) override {
    return std::exchange(units_[unit.number].memory, {});
  }
  void before_reshard(const UnitShards&) override {}

  bool stages_gradients() const override { return false; }
  void take_gradient(const UnitShards& unit, std::size_t place) override {
    Unit& state = units_[unit.number];
    state.means.resize(unit.trainable.size());
    state.was_used.resize(unit.trainable.size());
    const ShardedParameter& parameter = unit.trained(place);
    const Tensor gradient = parameter.take_gradient();
    state.was_used[place] = gradient.defined();
    state.means[place] =
        gradient.defined() ? gradient : torch::zeros(parameter.full.sizes());
  }
  void start_reduce(const UnitShards& unit, std::size_t place) override {
    Tensor& mean = units_[unit.number].means[place];
    std::vector<Tensor> rows;
    for (int rank = 0; rank < group_.size(); ++rank)
      rows.push_back(unit.trained(place).rows_of(mean, rank));
    rows = group_.all_to_all(rows);
    mean = rows[0].clone();
    for (std::size_t r = 1; r < rows.size(); ++r) mean.add_(rows[r]);
    mean.div_(group_.size());
  }
  void finish_reduce(const UnitShards&, std::size_t) override {}
  void start_rest(const UnitShards& unit, std::uint64_t order_hash) override {
    for (std::size_t place = 0; place < unit.trainable.size(); ++place) {
      if (is_sent_alone(unit.trained(place))) continue;
      take_gradient(unit, place);
      start_reduce(unit, place);
    }
    units_[unit.number].order_hash = static_cast<std::int64_t>(order_hash);
  }
  bool finish_rest(const UnitShards& unit) override {
    const Unit state = std::exchange(units_[unit.number], {});
    const Tensor used = torch::tensor(state.was_used, torch::kLong);
    group_.all_reduce(used);
    for (std::size_t place = 0; place < state.means.size(); ++place) {
      if (used[static_cast<std::int64_t>(place)].item<std::int64_t>() > 0)
        unit.trained(place).add_gradient(state.means[place]);
    }
    const auto hashes = group_.all_gather(torch::tensor({state.order_hash}));
    return std::all_of(hashes.begin(), hashes.end(), [&](const Tensor& hash) {
      return torch::equal(hash, hashes.front());
    });
  }
  void abandon(const UnitShards& unit) override {
    units_[unit.number] = Unit();
  }

 private:
  struct Unit {
    std::vector<Tensor> memory = {}, means = {};  // by place
    std::vector<std::int64_t> was_used = {};
    std::int64_t order_hash = 0;
  };

  Group group_, reshard_group_;
  int& num_reshard_group_gathers_;
  std::vector<Unit> units_;
};

/// Counts the units whose gathers are in flight.
class CountingTraffic final : public CollectiveTraffic {
 public:
  CountingTraffic(
      const Mesh& mesh,
      Group reshard_group,
      int& num_reshard_group_gathers,
      int& num_in_flight)
      : CollectiveTraffic(
            mesh,
            std::move(reshard_group),
            num_reshard_group_gathers),
        num_in_flight_(num_in_flight) {}

  void start_unshard(
      const UnitShards& unit,
      ShardSource source,
      std::vector<Tensor> memory) override {
    ++num_in_flight_;
    CollectiveTraffic::start_unshard(unit, source, std::move(memory));
  }
  std::vector<Tensor> finish_unshard(const UnitShards& unit) override {
    --num_in_flight_;
    return CollectiveTraffic::finish_unshard(unit);
  }

 private:
  int& num_in_flight_;
};

struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i) layers->push_back(nn::Linear(96, 96));
    register_module("layers", layers);
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (Tensor& parameter : parameters()) {
      parameter.copy_(
          (torch::sin(torch::arange(parameter.numel()) + 37 * number++) * 0.1)
              .view(parameter.sizes()));
    }
  }
  Tensor forward(Tensor h, bool uses_last) {
    for (std::size_t i = 0; i + (uses_last ? 0 : 1) < layers->size(); ++i)
      h = torch::tanh(layers[i]->as<nn::Linear>()->forward(h));
    return h;
  }
  nn::ModuleList layers;
};
TORCH_MODULE(Net);

// The values of the shards after some steps of gradient descent.
std::vector<Tensor> train(
    const World& world,
    const ShardOptions& options,
    const MakeShardTraffic& make_traffic) {
  std::array<int, kNumAxes> degrees{};
  degrees.fill(1);
  degrees[static_cast<std::size_t>(Axis::shard)] = world.size();
  const Mesh mesh(world, degrees);
  const auto shard = make_shard(mesh, options, make_traffic);
  Net net;
  ParameterTable table(*net);
  shard->prepare(*net, table);
  EXPECT_FALSE(testing::has_memory(table.rows().front().tensor));
  for (int step = 0; step < 4; ++step) {
    const Tensor x = torch::sin(
        torch::arange(4 * 96).view({4, 96}) + step + 7 * world.rank());
    shard->before_forward();
    const Tensor loss = net->forward(x, step != 2).pow(2).mean();
    shard->after_forward({});
    shard->before_backward(/*sync_gradients=*/true, loss);
    loss.backward();
    shard->after_backward(/*sync_gradients=*/true);
    const torch::NoGradGuard no_grad;
    for (const Parameter& row : table.rows()) {
      if (row.local.grad().defined()) row.local.sub_(row.local.grad());
      row.local.mutable_grad().reset();
    }
    shard->after_load();
  }
  std::vector<Tensor> values;
  for (const Parameter& row : table.rows())
    values.push_back(row.local.detach().clone());
  return values;
}

void expect_alike(int num_ranks, const ShardOptions& options) {
  run_in_worlds(num_ranks, [&](const World& world) {
    int num_reshard_group_gathers = 0;
    const auto host = train(world, options, &make_host_traffic);
    const auto collective = train(
        world,
        options,
        [&](const Mesh& mesh,
            const Group& reshard_group,
            const std::shared_ptr<BlockPool>&) {
          return std::make_unique<CollectiveTraffic>(
              mesh, reshard_group, num_reshard_group_gathers);
        });
    ASSERT_EQ(host.size(), collective.size());
    for (std::size_t i = 0; i < host.size(); ++i)
      EXPECT_TRUE(torch::equal(host[i], collective[i])) << "parameter " << i;
    EXPECT_EQ(num_reshard_group_gathers > 0, options.reshard_group_size > 1);
  });
}

TEST(ShardTraffic, IsOneClassForCollectives) {
  for (const int num_ranks : {2, 3}) expect_alike(num_ranks, {});
}

TEST(ShardTraffic, GathersInReshardGroups) {
  expect_alike(4, {.reshard_group_size = 2});
}

struct GatheredAhead {
  int in_forward = 0;
  int in_backward = 0;
  bool operator==(const GatheredAhead&) const = default;
};

// The largest number of units being gathered while a layer computes, once the
// execution order is known.
GatheredAhead
gathered_ahead(bool forward, bool backward, std::size_t depth = 1) {
  ShardOptions options;
  options.prefetch_depth = depth;
  options.prefetches_forward = forward;
  options.prefetches_backward = backward;
  GatheredAhead most;
  run_in_worlds(2, [&](const World& world) {
    std::array<int, kNumAxes> degrees{};
    degrees.fill(1);
    degrees[static_cast<std::size_t>(Axis::shard)] = world.size();
    const Mesh mesh(world, degrees);
    int num_reshard_group_gathers = 0, num_in_flight = 0;
    const auto shard = make_shard(
        mesh,
        options,
        [&](const Mesh& on,
            const Group& reshard_group,
            const std::shared_ptr<BlockPool>&) {
          return std::make_unique<CountingTraffic>(
              on, reshard_group, num_reshard_group_gathers, num_in_flight);
        });
    Net net;
    ParameterTable table(*net);
    shard->prepare(*net, table);
    GatheredAhead own;
    for (int step = 0; step < 3; ++step) {
      own = {};
      shard->before_forward();
      Tensor h = torch::ones({2, 96});
      for (std::size_t i = 0; i < net->layers->size(); ++i) {
        h = torch::tanh(net->layers[i]->as<nn::Linear>()->forward(h));
        own.in_forward = std::max(own.in_forward, num_in_flight);
        // Called once the layer above has computed its gradients.
        h.register_hook([&](const Tensor&) {
          own.in_backward = std::max(own.in_backward, num_in_flight);
        });
      }
      const Tensor loss = h.pow(2).mean();
      shard->after_forward({});
      shard->before_backward(/*sync_gradients=*/true, loss);
      loss.backward();
      shard->after_backward(/*sync_gradients=*/true);
      for (const Parameter& row : table.rows())
        row.local.mutable_grad().reset();
      shard->after_load();
    }
    if (world.rank() == 0) most = own;
  });
  return most;
}

TEST(ShardTraffic, GathersAheadInThePassesThatSayIt) {
  EXPECT_EQ(gathered_ahead(true, true), (GatheredAhead{1, 1}));
  EXPECT_EQ(gathered_ahead(false, true), (GatheredAhead{0, 1}));
  EXPECT_EQ(gathered_ahead(true, false), (GatheredAhead{1, 0}));
  EXPECT_EQ(gathered_ahead(false, false), (GatheredAhead{0, 0}));
  // A backward of four layers gathers two: the last layer is still unsharded,
  // and the input of the first needs no gradient.
  EXPECT_EQ(gathered_ahead(true, true, 2), (GatheredAhead{2, 1}));
}

}  // namespace shard_traffic_test
}  // namespace accelerate::detail
