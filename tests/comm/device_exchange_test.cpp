// Exchanges of tensors on devices: over NCCL they stay there, and what nobody
// waits for is garbage.
#include <algorithm>
#include <cstdint>
#include <future>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/attention.h>
#include <accelerate/experts.h>
#include <accelerate/sequence_shards.h>
#include <accelerate/world.h>

#include "comm/autograd/all_to_all.h"
#include "comm/group/begun_exchange.h"
#include "comm/group/group_impl.h"
#include "parallel/context/sequence_tensors.h"
#include "parallel/expert/token_plan.h"
#include "support/nccl_ranks.h"
#include "support/pretend_device.h"

namespace accelerate {
namespace device_exchange_test {

using detail::BegunExchange;
using detail::PeerMessage;
using detail::RowExchange;
using testing::run_in_nccl_worlds;
using testing::run_in_worlds;

constexpr auto kGarbage = static_cast<std::int64_t>(0xa5a5a5a5a5a5a5a5);

at::Tensor on(const World& world, const at::Tensor& tensor) {
  return tensor.to(world.device());
}

void expect_values(const at::Tensor& tensor, const at::Tensor& expected) {
  EXPECT_FALSE(tensor.is_cpu());
  EXPECT_TRUE(torch::equal(tensor.cpu(), expected))
      << tensor.cpu() << " instead of " << expected;
}

// A message to the next rank, and one from the rank before this one.
BegunExchange shift(
    const World& world,
    const std::vector<at::Tensor>& sent,
    const std::vector<at::Tensor>& received) {
  const int n = world.size(), mine = world.rank();
  std::vector<PeerMessage> sends, receives;
  for (const at::Tensor& each : sent) sends.push_back({each, (mine + 1) % n});
  for (const at::Tensor& each : received)
    receives.push_back({each, (mine + n - 1) % n});
  return BegunExchange::exchange(world.group(), "a test", sends, receives);
}

class DeviceExchange : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Of, DeviceExchange, ::testing::Values(2, 3, 4));

TEST_P(DeviceExchange, MovesEveryType) {
  run_in_nccl_worlds(GetParam(), [](const World& world) {
    const int before = (world.rank() + world.size() - 1) % world.size();
    for (const at::ScalarType type :
         {at::kBool, at::kLong, at::kBFloat16, at::kFloat, at::kDouble}) {
      const auto value = [&](int rank) {
        return torch::full({3, 2}, rank).to(type);
      };
      const auto options = at::TensorOptions(type).device(world.device());
      const std::vector<at::Tensor> received{
          torch::empty({3, 2}, options), torch::empty({0, 3}, options)};
      shift(world, {on(world, value(world.rank())), received[1]}, received)
          .wait();
      expect_values(received[0], value(before));
    }
  });
}

TEST(DeviceExchanges, HaveStreamsWaitAndNotTheHost) {
  std::promise<void> first_has_waited;
  run_in_nccl_worlds(2, [&](const World& world) {
    detail::Connection& connection = *world.group().impl()->connection;
    const int mine = world.rank(), peer = 1 - mine;
    const at::Tensor sent = on(world, torch::full({2}, mine + 1));
    const at::Tensor received = torch::empty({2}, sent.options());
    // Connects, and leaves nothing to do.
    const at::Tensor sum = on(world, torch::zeros({1}));
    connection.all_reduce(sum, ReduceOp::sum)->wait();
    sum.cpu();
    if (mine == 1) first_has_waited.get_future().get();
    const detail::BegunMessages begun =
        connection.exchange({{sent, peer}}, {{received, peer}});
    begun.receives->wait();
    if (mine == 0) {
      EXPECT_FALSE(begun.receives->isCompleted());
      first_has_waited.set_value();
    }
    expect_values(received, torch::full({2}, peer + 1));
  });
}

TEST(DeviceExchanges, ShowGarbageToThoseWhoDoNotWait) {
  run_in_nccl_worlds(2, [](const World& world) {
    const auto options = at::TensorOptions(at::kLong).device(world.device());
    const at::Tensor received = torch::empty({2}, options);
    BegunExchange begun =
        shift(world, {torch::full({2}, world.rank(), options)}, {received});
    const at::Tensor early = received.cpu();
    // In host memory, so that no device gets on.
    world.group().barrier();
    begun.wait();
    expect_values(received, torch::full({2}, 1 - world.rank()));
    EXPECT_EQ(early[0].item<std::int64_t>(), kGarbage);
  });
}

// Some exchanges are dropped, and other groups' collectives lie between them.
TEST_P(DeviceExchange, MatchesThoseOfOtherRanks) {
  run_in_nccl_worlds(GetParam(), [](const World& world) {
    const int before = (world.rank() + world.size() - 1) % world.size();
    const auto options = at::TensorOptions(at::kLong).device(world.device());
    std::vector<BegunExchange> begun;
    std::vector<at::Tensor> received;
    for (int round = 0; round < 12; ++round) {
      received.push_back(torch::empty({1 + round}, options));
      begun.push_back(shift(
          world,
          {torch::full({1 + round}, 10 * round + world.rank(), options)},
          {received.back()}));
      if (round % 3 == 0) world.group().all_reduce(torch::ones({2}, options));
      if (round % 4 == 1) begun.back() = BegunExchange();
    }
    for (std::size_t i = begun.size(); i-- > 0;) {
      if (i % 4 == 1) continue;
      begun[i].wait();
      const auto round = static_cast<std::int64_t>(i);
      expect_values(received[i], torch::full({1 + round}, 10 * round + before));
    }
  });
}

// Every rank sends r rows to rank r.
TEST(DeviceExchanges, OfRowsGoBackInBackward) {
  run_in_nccl_worlds(3, [](const World& world) {
    const int mine = world.rank();
    const at::Tensor host =
        torch::arange(6, at::kDouble).view({3, 2}) + 100 * mine;
    const at::Tensor rows = on(world, host).requires_grad_();
    detail::RowCounts counts{{0, 1, 2}, {}};
    counts.received.assign(3, mine);
    RowExchange exchange({world.group(), "a test", "a test's rows"}, counts);
    exchange.begin(rows);
    const at::Tensor arrived = exchange.finish();
    EXPECT_EQ(arrived.sizes(), at::IntArrayRef({3 * mine, 2}));
    if (mine == 2) {
      expect_values(
          arrived.detach(),
          torch::tensor(
              {2., 3., 4., 5., 102., 103., 104., 105., 202., 203., 204., 205.},
              at::kDouble)
              .view({6, 2}));
    }
    arrived.backward(arrived.detach() * 2);
    expect_values(rows.grad(), host * 2);
  });
}

TEST(DeviceExchanges, OfRowsThatNobodyWaitsForAreGarbage) {
  run_in_nccl_worlds(2, [](const World& world) {
    const at::Tensor rows = on(world, torch::full({2, 1}, world.rank()));
    RowExchange exchange(
        {world.group(), "a test", "a test's rows"}, {{1, 1}, {1, 1}});
    exchange.begin(rows);
    // What is computed in between does not wait.
    const at::Tensor meanwhile = (rows + 1).cpu();
    world.group().barrier();
    expect_values(exchange.finish(), torch::tensor({{0}, {1}}));
    EXPECT_EQ(meanwhile[0][0].item<std::int64_t>(), world.rank() + 1);
  });
}

// The rows that are not there to fill up.
std::vector<at::Tensor> rows_of(const detail::TokenPlan& plan, int num_slots) {
  const at::Tensor slots = plan.slots.cpu();
  const at::Tensor is_row = slots < num_slots;
  return {slots.masked_select(is_row), plan.tokens.cpu().masked_select(is_row)};
}

// A device's plan with a capacity has as many rows as fit; the host's has those
// that there are. Ranks have different numbers of tokens, one of them none.
TEST(DeviceExchanges, PlanTokensWhereTheyLie) {
  run_in_nccl_worlds(3, [](const World& world) {
    const std::int64_t num_tokens = 10 * world.rank();
    auto generator = at::detail::createCPUGenerator(7);
    const Routing host{
        at::argsort(
            torch::rand({num_tokens, 5}, generator), std::int64_t{1}, false)
            .narrow(1, 0, 2),
        torch::rand({num_tokens, 2}, generator),
        {},
        {}};
    const Routing device{
        on(world, host.experts), on(world, host.weights), {}, {}};
    const auto num_slots = static_cast<int>(2 * num_tokens);
    for (const std::int64_t capacity : {-1, 0, 3, 7}) {
      for (const TokenDrop drop :
           {TokenDrop::lowest_weight,
            TokenDrop::last_position,
            TokenDrop::random}) {
        RouterOptions options{.min_capacity = capacity, .drop = drop};
        if (capacity >= 0) options.capacity_factor = 0;
        const detail::TokenPlan expected =
            detail::plan_tokens(host, 5, options, true, world.group());
        const std::int64_t before = testing::pretend_host_waits();
        const detail::TokenPlan found =
            detail::plan_tokens(device, 5, options, true, world.group());
        EXPECT_EQ(testing::pretend_host_waits() - before, capacity < 0 ? 1 : 0);
        EXPECT_EQ(found.is_padded, capacity >= 0);
        expect_values(found.num_assigned, expected.num_assigned);
        expect_values(found.num_kept, expected.num_kept);
        const std::int64_t most = std::min(capacity, num_tokens);
        if (capacity >= 0) {
          EXPECT_EQ(found.slots.numel(), 5 * most);
          for (std::int64_t rank = 0; rank < 3; ++rank) {
            const std::vector<std::int64_t> counts(
                5, std::min(capacity, 10 * rank));
            EXPECT_EQ(
                found.host_counts_of_ranks[static_cast<std::size_t>(rank)],
                counts);
            expect_values(found.counts_of_ranks[rank], torch::tensor(counts));
          }
        } else {
          EXPECT_EQ(found.host_counts_of_ranks, expected.host_counts_of_ranks);
          expect_values(found.counts_of_ranks, expected.counts_of_ranks);
        }
        const auto rows = rows_of(found, num_slots);
        // Random tokens are drawn where they lie.
        const auto wanted = rows_of(expected, num_slots);
        EXPECT_EQ(rows[0].numel(), wanted[0].numel());
        if (drop == TokenDrop::random) {
          EXPECT_TRUE(torch::equal(rows[1], rows[0].floor_divide(2)));
          EXPECT_EQ(
              std::get<0>(at::_unique2(rows[0])).numel(), rows[0].numel());
        } else {
          EXPECT_TRUE(torch::equal(rows[0], wanted[0]));
          EXPECT_TRUE(torch::equal(rows[1], wanted[1]));
        }
        // Each expert's rows are at its place.
        for (std::int64_t e = 0; capacity > 0 && most > 0 && e < 5; ++e) {
          const at::Tensor own = found.slots.cpu().narrow(0, e * most, most);
          const at::Tensor kept = own.masked_select(own < num_slots);
          EXPECT_TRUE(host.experts.reshape({-1})
                          .index_select(0, kept)
                          .eq(e)
                          .all()
                          .item<bool>());
        }
      }
    }
  });
}

// Output and gradients of this rank's part of a sequence.
std::vector<at::Tensor> attend(
    const World& world,
    KeyValueRotation rotation,
    decltype(&ring_attention) attention) {
  constexpr std::int64_t kLength = 12;
  auto generator = at::detail::createCPUGenerator(3);
  const SequenceShards shards(kLength, world.size(), SequenceCut::zigzag);
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 4; ++i) {
    inputs.push_back(
        on(world,
           detail::local_positions(
               torch::randn({2, 4, kLength, 4}, generator, at::kDouble),
               2,
               shards,
               world.rank(),
               0)));
    if (i < 3) inputs.back().requires_grad_();
  }
  SequenceAttentionOptions options;
  options.is_causal = true;
  options.rotation = rotation;
  const at::Tensor output = attention(
      inputs[0], inputs[1], inputs[2], world.group(), shards, options);
  output.backward(inputs[3]);
  std::vector<at::Tensor> results{output.detach().cpu()};
  for (int i = 0; i < 3; ++i)
    results.push_back(inputs[static_cast<std::size_t>(i)].grad().cpu());
  return results;
}

void expect_same_attention(
    int num_ranks,
    KeyValueRotation rotation,
    decltype(&ring_attention) attention = &ring_attention) {
  std::vector<std::vector<at::Tensor>> expected(
      static_cast<std::size_t>(num_ranks));
  run_in_worlds(num_ranks, [&](const World& world) {
    expected[static_cast<std::size_t>(world.rank())] =
        attend(world, rotation, attention);
  });
  run_in_nccl_worlds(num_ranks, [&](const World& world) {
    const auto found = attend(world, rotation, attention);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(torch::allclose(
          found[i],
          expected[static_cast<std::size_t>(world.rank())][i],
          1e-10,
          1e-12))
          << "result " << i << " of rank " << world.rank();
    }
  });
}

TEST_P(DeviceExchange, CarriesTheBlocksOfRings) {
  for (const auto rotation :
       {KeyValueRotation::allgather, KeyValueRotation::alltoall})
    expect_same_attention(GetParam(), rotation);
}

TEST_P(DeviceExchange, CarriesTheHeadsOfUlysses) {
  expect_same_attention(
      GetParam(), KeyValueRotation::allgather, &ulysses_attention);
}

}  // namespace device_exchange_test
}  // namespace accelerate
