#include "cli/launch/nodes/elastic_keeper.h"

#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <accelerate/error.h>

#include "cli/launch/nodes/elastic_member.h"
#include "support/expect_error.h"

namespace accelerate::cli {
namespace elastic_keeper_test {

using ::testing::ElementsAre;

constexpr int kFailed = 3 << 8;

/// Three machines of two seats; the test decides what their launchers and ranks
/// do.
class Cluster {
 public:
  explicit Cluster(
      ElasticKeeper::Options options = {},
      std::vector<std::int64_t> launchers = {1, 1, 1},
      std::chrono::milliseconds patience = std::chrono::hours(1))
      : keeper_(complete(options, patience), launchers), machines_(3) {
    for (int machine = 0; machine < 3; ++machine) {
      at(machine).launcher = launchers[static_cast<std::size_t>(machine)];
      at(machine).seats.resize(2);
    }
    follow();
  }

  /// A new launcher on the machine waits to join.
  void arrive_launcher(int machine, std::int64_t launcher) {
    at(machine) = {.launcher = launcher, .seats = std::vector<SeatReport>(2)};
  }
  void leave(int machine) { at(machine).wants_to_leave = true; }
  void end(int seat, int wait_status) {
    SeatReport& own = seat_at(seat);
    ++own.num_ended;
    own.wait_status = wait_status;
  }
  void kill_launcher(int machine) {
    at(machine) = {};
    keeper_.lose(machine);
  }
  /// The processes of these seats are ready for a generation.
  void arrive(const std::vector<int>& seats, std::uint32_t generation) {
    for (const int seat : seats) {
      seat_at(seat).announced = seat_at(seat).process;
      seat_at(seat).arrived = generation;
    }
  }
  /// Launchers report, the keeper decides and launchers start processes, until
  /// nothing changes.
  void follow() {
    for (int i = 0; i < 5; ++i) {
      for (int machine = 0; machine < 3; ++machine) {
        if (at(machine).launcher > 0) keeper_.take(machine, at(machine));
      }
      keeper_.keep();
      // Orders travel as text.
      const GroupOrders orders = parse_orders(to_text(keeper_.orders()));
      for (int seat = 0; seat < 6; ++seat) {
        const auto& machine =
            orders.machines[static_cast<std::size_t>(seat / 2)];
        if (machine.launcher == 0 || machine.launcher != at(seat / 2).launcher)
          continue;
        SeatReport& own = seat_at(seat);
        const auto wanted =
            orders.seats[static_cast<std::size_t>(seat)].num_started;
        if (own.num_started >= wanted) continue;
        ++own.num_started;
        own.process = ++num_processes_;
      }
    }
  }

  [[nodiscard]] std::vector<int> ranks() const {
    std::vector<int> ranks;
    for (const SeatOrders& seat : keeper_.orders().seats)
      ranks.push_back(seat.rank);
    return ranks;
  }
  [[nodiscard]] int num_started(int seat) { return seat_at(seat).num_started; }
  ElasticKeeper* operator->() { return &keeper_; }

 private:
  static ElasticKeeper::Options complete(
      ElasticKeeper::Options options,
      std::chrono::milliseconds patience) {
    options.num_machines = 3;
    options.seats_per_machine = 2;
    options.patience = patience;
    return options;
  }
  MachineReport& at(int machine) {
    return machines_[static_cast<std::size_t>(machine)];
  }
  SeatReport& seat_at(int seat) {
    return at(seat / 2).seats[static_cast<std::size_t>(seat % 2)];
  }

  ElasticKeeper keeper_;
  std::vector<MachineReport> machines_;
  int num_processes_ = 100;
};

TEST(ElasticKeeper, BeginsWithTheMachinesThatAreThere) {
  Cluster cluster({.fewest_ranks = 2}, {1, 0, 1});
  EXPECT_THAT(cluster.ranks(), ElementsAre(0, 1, -1, -1, 2, 3));
  EXPECT_EQ(cluster->orders().num_ranks, 4);
  EXPECT_EQ(cluster.num_started(0), 1);
  EXPECT_EQ(cluster.num_started(2), 0);
}

TEST(ElasticKeeper, TakesAMachineInWhenItsRanksAreReady) {
  Cluster cluster({.fewest_ranks = 2}, {1, 0, 1});
  cluster.arrive_launcher(1, 1);
  cluster.follow();
  // The other ranks have not called run_elastic() yet.
  EXPECT_EQ(cluster.num_started(2), 0);
  cluster.arrive({0, 1, 4, 5}, 1);
  cluster.follow();
  EXPECT_EQ(cluster.num_started(2), 1);
  EXPECT_EQ(cluster->orders().seats[2].first_generation, 2U);
  EXPECT_EQ(cluster->orders().wanted, 1U);
  cluster.arrive({2, 3}, 2);
  cluster.follow();
  EXPECT_EQ(cluster->orders().wanted, 2U);
  EXPECT_EQ(cluster->orders().target, 1U);
  cluster.arrive({0, 1, 4, 5}, 2);
  cluster.follow();
  EXPECT_EQ(cluster->orders().generation, 2U);
  EXPECT_THAT(cluster.ranks(), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(ElasticKeeper, GoesOnWithoutAMachineThatIsGone) {
  Cluster cluster({.fewest_ranks = 4});
  cluster.arrive({0, 1, 2, 3, 4, 5}, 1);
  cluster.follow();
  cluster.kill_launcher(1);
  cluster.follow();
  EXPECT_EQ(cluster->orders().target, 2U);
  EXPECT_EQ(cluster->orders().machines[1].left_out, 1);
  cluster.arrive({0, 1, 4, 5}, 2);
  cluster.follow();
  EXPECT_THAT(cluster.ranks(), ElementsAre(0, 1, -1, -1, 2, 3));
  EXPECT_FALSE(cluster->outcome());
  // A launcher that was declared gone cannot rejoin.
  cluster.arrive_launcher(1, 1);
  cluster.follow();
  EXPECT_EQ(cluster->orders().machines[1].launcher, 0);
  cluster.arrive_launcher(1, 2);
  cluster.follow();
  EXPECT_EQ(cluster->orders().machines[1].launcher, 2);
  EXPECT_EQ(cluster.num_started(2), 1);
  cluster.kill_launcher(0 + 2);
  cluster.follow();
  cluster.kill_launcher(1);
  cluster.follow();
  ASSERT_TRUE(cluster->outcome());
  EXPECT_EQ(cluster->outcome()->code, 1);
}

TEST(ElasticKeeper, KnowsANewLauncherThatComesBeforeItSawTheEndOfTheOld) {
  Cluster cluster({.fewest_ranks = 2});
  cluster.arrive({0, 1, 2, 3, 4, 5}, 1);
  cluster.follow();
  cluster.arrive_launcher(2, 2);
  cluster.follow();
  EXPECT_EQ(cluster->orders().target, 2U);
  EXPECT_EQ(cluster.num_started(4), 0);
  cluster.arrive({0, 1, 2, 3}, 2);
  cluster.follow();
  EXPECT_EQ(cluster.num_started(4), 1);
  EXPECT_EQ(cluster->orders().seats[4].first_generation, 3U);
}

TEST(ElasticKeeper, LetsAMachineLeaveAtTheEndOfAStep) {
  Cluster cluster({.fewest_ranks = 4});
  cluster.arrive({0, 1, 2, 3, 4, 5}, 1);
  cluster.leave(2);
  cluster.follow();
  EXPECT_EQ(cluster->orders().wanted, 2U);
  EXPECT_EQ(cluster->orders().target, 1U);
  cluster.arrive({0, 1, 2, 3, 4, 5}, 2);
  cluster.follow();
  EXPECT_THAT(cluster.ranks(), ElementsAre(0, 1, 2, 3, -1, -1));
  cluster.end(4, 0);
  cluster.end(5, 0);
  cluster.follow();
  EXPECT_EQ(cluster->orders().machines[2].left_out, 1);
  EXPECT_FALSE(cluster->outcome());
  // Too few ranks would remain.
  cluster.leave(1);
  cluster.follow();
  EXPECT_EQ(cluster->orders().machines[1].refused, 1);
}

TEST(ElasticKeeper, ReplacesARankOnItsMachineAsLongAsItMay) {
  Cluster cluster({.fewest_ranks = 2, .num_restarts_left = 1});
  cluster.arrive({0, 1, 2, 3, 4, 5}, 1);
  cluster.end(3, SIGKILL);
  cluster.follow();
  EXPECT_EQ(cluster.num_started(3), 2);
  cluster.arrive({0, 1, 2, 3, 4, 5}, 2);
  cluster.follow();
  EXPECT_EQ(cluster->orders().generation, 2U);
  cluster.end(3, SIGKILL);
  cluster.follow();
  EXPECT_EQ(cluster.num_started(3), 2);
  cluster.arrive({0, 1, 2, 4, 5}, 3);
  cluster.follow();
  EXPECT_THAT(cluster.ranks(), ElementsAre(0, 1, 2, -1, 3, 4));
  // A machine that loses its last rank is left out, except the first machine.
  cluster.end(2, kFailed);
  cluster.follow();
  EXPECT_EQ(cluster->orders().machines[1].left_out, 1);
  cluster.arrive({0, 1, 4, 5}, 4);
  cluster.follow();
  cluster.end(0, kFailed);
  cluster.end(1, kFailed);
  cluster.follow();
  cluster.arrive({4, 5}, 5);
  cluster.follow();
  EXPECT_THAT(cluster.ranks(), ElementsAre(-1, -1, -1, -1, 0, 1));
  EXPECT_EQ(cluster->orders().machines[0].left_out, 0);
  EXPECT_FALSE(cluster->outcome());
}

TEST(ElasticKeeper, KillsRanksThatDoNotLeaveABrokenGeneration) {
  Cluster cluster(
      {.fewest_ranks = 2}, {1, 1, 1}, std::chrono::milliseconds(-1));
  cluster.arrive({0, 1, 2, 3, 4, 5}, 1);
  cluster.follow();
  cluster.kill_launcher(2);
  cluster.arrive({0, 1}, 2);
  cluster.follow();
  EXPECT_EQ(cluster->orders().seats[0].num_killed, 0);
  EXPECT_EQ(cluster->orders().seats[2].num_killed, 1);
  // These ranks waited for the lost machine; replacing them uses no restart.
  cluster.end(2, SIGKILL);
  cluster.end(3, SIGKILL);
  cluster.follow();
  EXPECT_EQ(cluster.num_started(2), 2);
  cluster.arrive({2, 3}, 2);
  cluster.follow();
  EXPECT_THAT(cluster.ranks(), ElementsAre(0, 1, 2, 3, -1, -1));
}

TEST(ElasticKeeper, EndsWhenAllRanksHaveFinished) {
  Cluster cluster({.fewest_ranks = 2}, {1, 1, 0});
  cluster.arrive({0, 1, 2, 3}, 1);
  cluster.follow();
  cluster.arrive_launcher(2, 1);
  cluster.follow();
  EXPECT_EQ(cluster.num_started(4), 1);
  for (const int seat : {0, 1, 2}) cluster.end(seat, 0);
  cluster.follow();
  EXPECT_FALSE(cluster->outcome());
  // Processes that join now are too late.
  cluster.arrive({4, 5}, 2);
  cluster.end(3, 0);
  cluster.follow();
  ASSERT_TRUE(cluster->outcome());
  EXPECT_EQ(cluster->outcome()->code, 0);
}

TEST(ElasticKeeper, EndsAsTheFirstRankThatFailsInAGroupThatIsNotElastic) {
  Cluster cluster({.fewest_ranks = 2, .num_restarts_left = 4});
  cluster.end(3, kFailed);
  cluster.follow();
  ASSERT_TRUE(cluster->outcome());
  const GroupOutcome outcome = parse_outcome(to_text(*cluster->outcome()));
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.machine, 1);
  EXPECT_EQ(outcome.reason, "ranks on machine 1");
  EXPECT_EQ(outcome.num_restarts_left, 4);
}

TEST(ElasticMember, BringsItsBoardUpToWhatWasDecided) {
  const detail::Board board =
      detail::Board::create({.num_pages = 2, .world_size = 6});
  ElasticMember member(1, 2, 7);
  EXPECT_FALSE(member.belongs());
  member.use_board(board);
  EXPECT_THAT(member.exchange().starts, ::testing::IsEmpty());
  GroupOrders orders{
      .generation = 1,
      .target = 1,
      .wanted = 1,
      .num_ranks = 4,
      .seats = std::vector<SeatOrders>(6),
      .machines = std::vector<MachineOrders>(3)};
  // Orders for an earlier launcher.
  orders.machines[1].launcher = 6;
  orders.seats[2] = {.rank = 2, .num_started = 1};
  orders.seats[3] = {.rank = 3, .num_started = 1};
  member.hear(orders);
  EXPECT_FALSE(member.belongs());
  EXPECT_THAT(member.exchange().starts, ::testing::IsEmpty());
  orders.machines[1].launcher = 7;
  member.hear(orders);
  ElasticMember::Orders due = member.exchange();
  EXPECT_TRUE(due.has_begun);
  EXPECT_THAT(
      due.starts,
      ElementsAre(
          std::pair<int, std::uint32_t>(0, 1),
          std::pair<int, std::uint32_t>(1, 1)));
  member.note_start(0, 500);
  member.note_start(1, 501);
  due = member.exchange();
  EXPECT_FALSE(due.has_begun);
  EXPECT_THAT(due.starts, ::testing::IsEmpty());
  EXPECT_EQ(board.page(1).seat.rank.load(), 3);
  EXPECT_EQ(board.header().num_ranks.load(), 4);
  EXPECT_FALSE(member.is_changing());
  board.page(0).seat.process.store(500);
  board.page(0).seat.arrived.store(1);
  orders.seats[2].num_killed = 1;
  orders.target = orders.wanted = 2;
  member.hear(orders);
  EXPECT_TRUE(member.is_changing());
  EXPECT_THAT(member.exchange().kills, ElementsAre(0));
  EXPECT_EQ(board.header().target.load(), 2U);
  member.note_end(0, SIGKILL);
  const MachineReport report = parse_report(member.report());
  EXPECT_EQ(report.launcher, 7);
  ASSERT_EQ(report.seats.size(), 2U);
  EXPECT_EQ(report.seats[0].announced, 500);
  EXPECT_EQ(report.seats[0].arrived, 1U);
  EXPECT_EQ(report.seats[0].num_ended, 1);
  EXPECT_EQ(report.seats[0].wait_status, SIGKILL);
  EXPECT_THAT(member.exchange().kills, ::testing::IsEmpty());
  orders.machines[1] = {.launcher = 0, .left_out = 7};
  member.hear(orders);
  EXPECT_TRUE(member.is_left_out());
}

TEST(ElasticMessages, RefuseWhatTheyDoNotUnderstand) {
  for (const char* const text : {"", "{}", "[1]", "{\"launcher\":\"x\"}"}) {
    testing::expect_error<DistributedError>(
        [&] { parse_report(text); }, "use the same version on all machines");
  }
}

}  // namespace elastic_keeper_test
}  // namespace accelerate::cli
