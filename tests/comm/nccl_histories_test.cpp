// Random histories of calls, aborts and deaths on the fake NCCL.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <torch/torch.h>

#include <accelerate/world.h>

#include "comm/group/group_impl.h"
#include "comm/transport/nccl/nccl_library.h"
#include "laws/check.h"
#include "support/nccl_ranks.h"

namespace accelerate {
namespace nccl_histories_test {

constexpr unsigned kCalls = 12;

enum class CallKind {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  exchange,
};
constexpr unsigned kKinds = 5;

// What happens before a call: a rank ends, or ends a group.
struct Fault {
  unsigned call = 0;
  int rank = 0;
  /// Unset: the rank ends.
  std::optional<std::size_t> group;
};

struct Call {
  CallKind kind = CallKind::all_reduce;
  std::size_t group = 0;
  double add = 0;
  unsigned root = 0;
};

struct History {
  int num_ranks = 2;
  std::vector<std::vector<int>> groups;
  std::vector<Call> calls;
  std::vector<Fault> faults;

  explicit History(std::uint32_t seed) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned end) {
      return static_cast<unsigned>(random() % end);
    };
    const auto below_groups = [&] {
      return below(static_cast<unsigned>(groups.size()));
    };
    num_ranks = 2 + static_cast<int>(below(3));
    const unsigned num_groups = 1 + below(4);
    while (groups.size() < num_groups) {
      std::vector<int> members;
      for (int rank = 0; rank < num_ranks; ++rank) {
        if (below(4) > 0) members.push_back(rank);
      }
      if (members.size() > 1) groups.push_back(members);
    }
    for (unsigned i = 0; i < kCalls; ++i) {
      calls.push_back(
          {static_cast<CallKind>(below(kKinds)),
           below_groups(),
           static_cast<double>(below(100)),
           below(100)});
    }
    for (unsigned i = below(3); i > 0; --i) {
      const unsigned call = below(kCalls);
      const auto rank =
          static_cast<int>(below(static_cast<unsigned>(num_ranks)));
      const std::size_t group = below_groups();
      faults.push_back({call, rank, std::nullopt});
      if (below(2) > 0 && has(group, rank)) faults.back().group = group;
    }
  }

  [[nodiscard]] bool has(std::size_t group, int rank) const {
    return std::ranges::count(groups[group], rank) > 0;
  }
  // Whether something may end the group.
  [[nodiscard]] bool is_faulty(std::size_t group) const {
    return std::ranges::any_of(faults, [&](const Fault& fault) {
      return fault.group ? *fault.group == group : has(group, fault.rank);
    });
  }
};

struct Begun {
  detail::Work work;
  at::Tensor value;
  at::Tensor expected;
  std::size_t group = 0;
};

// One rank of a history.
class Player {
 public:
  Player(const World& world, const History& history, std::uint32_t seed)
      : world_(world), history_(history), own_(seed) {
    for (const std::vector<int>& members : history.groups) {
      const bool is_member = std::ranges::count(members, world.rank()) > 0;
      groups_.push_back(is_member ? world.new_group(members) : Group());
    }
    has_ended_.resize(groups_.size());
  }

  void play() {
    for (unsigned i = 0; i < kCalls; ++i) {
      for (const Fault& fault : history_.faults) {
        if (fault.call != i || fault.rank != world_.rank()) continue;
        if (!fault.group) return;
        groups_[*fault.group].impl()->connection->abort();
      }
      const Call& call = history_.calls[i];
      if (groups_[call.group].size() == 1 || has_ended_[call.group]) continue;
      guard(call.group, [&] { begun_.push_back(begin(call)); });
      if (own_() % 3 > 0 || begun_.empty()) continue;
      const auto some =
          begun_.begin() + static_cast<std::ptrdiff_t>(own_() % begun_.size());
      // Others are dropped.
      if (own_() % 4 > 0) finish(*some);
      begun_.erase(some);
    }
    for (const Begun& each : begun_) finish(each);
  }

 private:
  at::Tensor filled(std::int64_t count, double value) const {
    return torch::full({count}, value, at::kDouble).to(world_.device());
  }

  // The library, or a rank, ends only groups that have a reason to end.
  template <class Body>
  void guard(std::size_t group, Body&& body) {
    try {
      body();
    } catch (const detail::NcclError& error) {
      has_ended_[group] = true;
      EXPECT_TRUE(history_.is_faulty(group)) << error.what();
    }
  }

  Begun begin(const Call& call) const {
    const std::vector<int>& members = history_.groups[call.group];
    const auto n = static_cast<std::int64_t>(members.size());
    detail::Connection& connection = *groups_[call.group].impl()->connection;
    const double mine = world_.rank() + call.add;
    double sum = 0;
    for (const int rank : members) sum += rank + call.add;
    const auto root =
        static_cast<int>(call.root % static_cast<unsigned>(members.size()));
    Begun begun{nullptr, filled(2, mine), {}, call.group};
    switch (call.kind) {
      case CallKind::all_reduce:
        begun.work = connection.all_reduce(begun.value, ReduceOp::sum);
        begun.expected = torch::full({2}, sum, at::kDouble);
        break;
      case CallKind::broadcast:
        begun.work = connection.broadcast(begun.value, root);
        begun.expected = torch::full(
            {2},
            members[static_cast<std::size_t>(root)] + call.add,
            at::kDouble);
        break;
      case CallKind::all_gather: {
        const at::Tensor input = begun.value;
        begun.value = torch::empty({n, 2}, input.options());
        begun.work = connection.all_gather(begun.value, input);
        begun.expected = torch::empty({n, 2}, at::kDouble);
        for (std::int64_t i = 0; i < n; ++i)
          begun.expected[i].fill_(
              members[static_cast<std::size_t>(i)] + call.add);
        break;
      }
      case CallKind::reduce_scatter:
        begun.work = connection.reduce_scatter(
            begun.value, filled(2 * n, mine), ReduceOp::sum);
        begun.expected = torch::full({2}, sum, at::kDouble);
        break;
      case CallKind::exchange: {
        const int next = (connection.rank() + 1) % connection.size();
        const int before =
            (connection.rank() + connection.size() - 1) % connection.size();
        // Some ranks have nothing to send, or to receive, or neither.
        const auto count_from = [&](int rank) {
          return call.root >> rank & 1 ? 2 : 0;
        };
        const int count = count_from(before);
        begun.value = torch::empty({count}, begun.value.options());
        begun.work =
            connection
                .exchange(
                    {{filled(count_from(connection.rank()), mine), next}},
                    {{begun.value, before}})
                .receives;
        begun.expected = torch::full(
            {count},
            members[static_cast<std::size_t>(before)] + call.add,
            at::kDouble);
        break;
      }
    }
    return begun;
  }

  // Values that were read while the group had not ended are exact.
  void finish(const Begun& begun) {
    guard(begun.group, [&] {
      begun.work->wait();
      const at::Tensor found = begun.value.cpu();
      begun.work->wait();
      EXPECT_TRUE(torch::equal(found, begun.expected))
          << found << " instead of " << begun.expected;
    });
  }

  const World& world_;
  const History& history_;
  std::mt19937 own_;
  std::vector<Group> groups_;
  std::vector<bool> has_ended_;
  std::vector<Begun> begun_;
};

// RC_PARAMS=max_success=5000 plays 10,000.
TEST(NcclHistories, EndAndAreExact) {
  testing::expect_law(200, [](std::uint32_t seed) {
    const History history(seed);
    testing::run_in_nccl_worlds(history.num_ranks, [&](const World& world) {
      Player(world, history, seed + static_cast<std::uint32_t>(world.rank()))
          .play();
    });
    RC_ASSERT(testing::num_nccl_communicators() == 0);
    RC_ASSERT(!::testing::Test::HasFailure());
  });
}

}  // namespace nccl_histories_test
}  // namespace accelerate
