#include "parallel/shard/reduction/reduction_order.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace accelerate::detail {
namespace reduction_order_test {

using Gradients = std::vector<GradientMessage>;

// A rank that sends gradients as they are computed, and waits where it can.
class Rank {
 public:
  explicit Rank(const std::vector<int>& sizes)
      : sizes_(sizes), order_(std::vector<bool>(sizes.size(), false)) {}

  void begin(const Gradients& computed) {
    order_.begin();
    computed_ = computed;
    next_ = 0;
    left_ = sizes_;
    sent_.clear();
    in_flight_.clear();
    most_in_flight_ = 0;
    is_ending_ = false;
  }

  /// Advances as far as possible; returns whether it advanced at all.
  template <class HasArrived>
  bool run(const HasArrived& has_arrived) {
    bool moved = false;
    while (!is_done()) {
      if (!is_ending_) {
        if (next_ == computed_.size()) {
          order_.end_gradients();
          for (std::size_t unit = 0; unit < sizes_.size(); ++unit)
            complete(unit);
          is_ending_ = true;
          moved = true;
          continue;
        }
        const GradientMessage& gradient = computed_[next_];
        if (is_waiting(has_arrived, gradient.unit)) return moved;
        send(gradient);
        if (--left_[gradient.unit] == 0)
          send({gradient.unit, GradientMessage::kRest});
        ++next_;
      } else {
        std::erase_if(in_flight_, has_arrived);
        if (!in_flight_.empty()) return moved;
      }
      moved = true;
    }
    return moved;
  }

  void end(bool all_alike) { order_.end(all_alike); }

  [[nodiscard]] bool is_done() const {
    return is_ending_ && in_flight_.empty();
  }
  [[nodiscard]] bool has_sent(const GradientMessage& message) const {
    return std::find(sent_.begin(), sent_.end(), message) != sent_.end();
  }
  [[nodiscard]] std::uint64_t hash() const { return order_.hash(); }
  [[nodiscard]] std::size_t most_in_flight() const { return most_in_flight_; }

 private:
  template <class HasArrived>
  bool is_waiting(const HasArrived& has_arrived, std::size_t current) {
    std::erase_if(in_flight_, [&](const GradientMessage& message) {
      return order_.may_wait_for(message, current) && has_arrived(message);
    });
    return std::any_of(
        in_flight_.begin(), in_flight_.end(), [&](const auto& message) {
          return order_.may_wait_for(message, current);
        });
  }

  void send(const GradientMessage& message) {
    order_.send(message);
    sent_.push_back(message);
    in_flight_.push_back(message);
    most_in_flight_ = std::max(most_in_flight_, in_flight_.size());
  }

  void complete(std::size_t unit) {
    if (left_[unit] == 0) return;
    for (int place = 0; place < sizes_[unit]; ++place) {
      const GradientMessage message{unit, static_cast<std::size_t>(place)};
      if (!has_sent(message)) send(message);
    }
    left_[unit] = 0;
    send({unit, GradientMessage::kRest});
  }

  std::vector<int> sizes_, left_;
  ReductionOrder order_;
  Gradients computed_, sent_, in_flight_;
  std::size_t next_ = 0, most_in_flight_ = 0;
  bool is_ending_ = false;
};

// Returns whether all ranks finish a backward.
bool finish_backward(
    std::vector<Rank>& ranks,
    const std::vector<Gradients>& computed) {
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].begin(computed[r]);
  const auto has_arrived = [&](const GradientMessage& message) {
    return std::all_of(ranks.begin(), ranks.end(), [&](const Rank& rank) {
      return rank.has_sent(message);
    });
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (Rank& rank : ranks) moves = rank.run(has_arrived) || moves;
  }
  const bool are_alike =
      std::all_of(ranks.begin(), ranks.end(), [&](const Rank& rank) {
        return rank.hash() == ranks.front().hash();
      });
  for (Rank& rank : ranks) rank.end(are_alike);
  return std::all_of(ranks.begin(), ranks.end(), [](const Rank& rank) {
    return rank.is_done();
  });
}

Gradients all_gradients(const std::vector<int>& sizes) {
  Gradients all;
  for (std::size_t unit = sizes.size(); unit-- > 0;) {
    for (int place = 0; place < sizes[unit]; ++place)
      all.push_back({unit, static_cast<std::size_t>(place)});
  }
  return all;
}

Gradients shuffled(Gradients gradients) {
  for (std::size_t i = gradients.size(); i > 1; --i)
    std::swap(
        gradients[i - 1], gradients[*rc::gen::inRange<std::size_t>(0, i)]);
  return gradients;
}

TEST(ReductionOrder, NeverLetsRanksWaitForEachOther) {
  EXPECT_TRUE(rc::check([] {
    const auto sizes = *rc::gen::nonEmpty(
        rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 4)));
    const auto num_ranks = *rc::gen::inRange(2, 5);
    std::vector<Rank> ranks(static_cast<std::size_t>(num_ranks), Rank(sizes));
    std::vector<Gradients> orders(1, all_gradients(sizes));
    for (int i = 0; i < 3; ++i) {
      Gradients order = orders.front();
      if (*rc::gen::arbitrary<bool>()) order = shuffled(order);
      if (*rc::gen::arbitrary<bool>()) order.pop_back();
      orders.push_back(std::move(order));
    }
    const auto any_order = [&] {
      return orders[*rc::gen::inRange<std::size_t>(0, orders.size())];
    };
    for (int step = 0; step < 8; ++step) {
      const Gradients usual = any_order();
      std::vector<Gradients> computed;
      for (int rank = 0; rank < num_ranks; ++rank) {
        Gradients mine = *rc::gen::inRange(0, 4) == 0 ? any_order() : usual;
        // This rank may use a different order, and may not use all parameters.
        if (*rc::gen::inRange(0, 6) == 0) mine = shuffled(mine);
        if (*rc::gen::inRange(0, 6) == 0) {
          std::erase_if(
              mine, [](const auto&) { return *rc::gen::inRange(0, 3) == 0; });
        }
        computed.push_back(std::move(mine));
      }
      RC_ASSERT(finish_backward(ranks, computed));
    }
  }));
}

TEST(ReductionOrder, KeepsOneMessageInFlightOnceTheOrderIsKnown) {
  const std::vector<int> sizes{3, 2, 3};
  std::vector<Rank> ranks(3, Rank(sizes));
  // The first unit gets gradients first and last, as a tied embedding does.
  Gradients computed = all_gradients(sizes);
  std::rotate(computed.begin(), computed.end() - 1, computed.end());
  const std::vector<Gradients> by_rank(3, computed);
  ASSERT_TRUE(finish_backward(ranks, by_rank));
  // Ranks wait for units, but not for single messages of a unit.
  EXPECT_EQ(ranks[0].most_in_flight(), 5u);
  ASSERT_TRUE(finish_backward(ranks, by_rank));
  // One gradient, and the rest of its unit.
  EXPECT_EQ(ranks[0].most_in_flight(), 2u);
}

TEST(ReductionOrder, RemembersTheOrdersOfSeveralLosses) {
  const std::vector<int> sizes{1, 1, 1, 1};
  std::vector<Rank> ranks(2, Rank(sizes));
  const Gradients one = all_gradients(sizes);
  Gradients other = one;
  other.erase(other.begin());
  for (int step = 0; step < 3; ++step) {
    for (const Gradients& order : {one, other}) {
      ASSERT_TRUE(finish_backward(ranks, {order, order}));
      // Ranks do not wait for messages that only one order has.
      if (step > 0) {
        EXPECT_LE(ranks[0].most_in_flight(), 4u);
      }
    }
  }
  // Reversed orders share no message that both could wait for.
  Gradients reversed = one;
  std::reverse(reversed.begin(), reversed.end());
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(finish_backward(ranks, {reversed, reversed}));
    ASSERT_TRUE(finish_backward(ranks, {one, reversed}));
  }
}

TEST(ReductionOrder, WaitsForNothingInAnotherOrder) {
  const std::vector<int> sizes{1, 1, 1, 1};
  std::vector<Rank> ranks(2, Rank(sizes));
  const Gradients usual = all_gradients(sizes);
  ASSERT_TRUE(finish_backward(ranks, {usual, usual}));
  Gradients other = usual;
  other.erase(other.begin());
  ASSERT_TRUE(finish_backward(ranks, {usual, other}));
  EXPECT_EQ(ranks[0].most_in_flight(), 2u);
  EXPECT_EQ(ranks[1].most_in_flight(), 8u);
  // The rank follows the usual order again.
  ASSERT_TRUE(finish_backward(ranks, {usual, usual}));
  EXPECT_EQ(ranks[1].most_in_flight(), 2u);
}

}  // namespace reduction_order_test
}  // namespace accelerate::detail
