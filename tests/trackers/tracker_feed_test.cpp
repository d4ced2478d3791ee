#include "trackers/feed/tracker_feed.h"

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate {
namespace {
namespace tracker_feed_test {

using detail::NumberBuffer;
using detail::TrackerFeed;
using detail::WhenFull;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Records its calls.
class Recorder : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "recorder"; }
  void start() override { note("start"); }
  void store_init_configuration(const TrackedValues& values) override {
    note("config " + TrackedValue(values).str());
  }
  void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues& options) override {
    note(
        "log " + TrackedValue(values).str() + " at " +
        (time.step ? std::to_string(*time.step) : "none") +
        (options.empty() ? "" : " with " + TrackedValue(options).str()));
  }
  void finish() override { note("finish"); }

  void note(const std::string& call) {
    calls.push_back(call);
    threads.push_back(std::this_thread::get_id());
  }
  std::vector<std::string> calls;
  std::vector<std::thread::id> threads;
};

class Failing final : public Recorder {
 public:
  [[nodiscard]] std::string name() const override { return "failing"; }
  void log(const TrackedValues&, const LogTime&, const TrackedValues&)
      override {
    throw Error("no network");
  }
};

/// Blocks in its first call until let_go is set.
class Blocked final : public Recorder {
 public:
  void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues& options) override {
    if (calls.empty()) {
      begun.set_value();
      let_go.get_future().wait();
    }
    Recorder::log(values, time, options);
  }
  std::promise<void> begun;
  std::promise<void> let_go;
};

std::shared_ptr<const TrackedItem> values(
    const TrackedValues& all,
    std::int64_t step) {
  return std::make_shared<TrackedItem>(TrackedItem{{step, 0}, all});
}

class Feed : public ::testing::Test {
 protected:
  detail::TrackerFeedOptions options() {
    return {.warn = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      warnings_.push_back(text);
    }};
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_F(Feed, CallsTrackersInOrderOnOneThread) {
  const auto tracker = std::make_shared<Recorder>();
  {
    TrackerFeed feed({tracker}, options());
    feed.start(TrackedValues{{"lr", 0.1}});
    for (int step = 0; step < 3; ++step) feed.push(values({{"a", step}}, step));
  }
  EXPECT_THAT(
      tracker->calls,
      ElementsAre(
          "start",
          "config {'lr': 0.1}",
          "log {'a': 0} at 0",
          "log {'a': 1} at 1",
          "log {'a': 2} at 2",
          "finish"));
  EXPECT_THAT(tracker->threads, Each(tracker->threads.front()));
  EXPECT_NE(tracker->threads.front(), std::this_thread::get_id());
}

TEST_F(Feed, GivesNumbersInTheirTurn) {
  const auto tracker = std::make_shared<Recorder>();
  {
    TrackerFeed feed({tracker}, options());
    feed.push_numbers({{"a", 0.5}, {"b", 1.5}}, {1, 0});
    feed.push_numbers({}, {std::nullopt, 0});
    feed.push(values({{"a", 2}}, 2));
    feed.push_numbers({{"a", 3.5}}, {3, 0});
    feed.run([&] { tracker->note("run"); });
    feed.push_numbers({{"a", 4.5}}, {4, 0});
  }
  EXPECT_THAT(
      tracker->calls,
      ElementsAre(
          "log {'a': 0.5, 'b': 1.5} at 1",
          "log {} at none",
          "log {'a': 2} at 2",
          "log {'a': 3.5} at 3",
          "run",
          "log {'a': 4.5} at 4",
          "finish"));
}

TEST(NumberBuffer, GivesBackWhatItWasGiven) {
  EXPECT_TRUE(rc::check([] {
    using Logged = std::pair<TrackedValues, std::optional<std::int64_t>>;
    NumberBuffer buffer, taken;
    for (int round = 0; round < 2; ++round) {
      std::vector<Logged> all;
      const auto num_calls = *rc::gen::inRange(0, 20);
      for (int i = 0; i < num_calls; ++i) {
        Logged& logged = all.emplace_back();
        for (const auto& [name, value] :
             *rc::gen::arbitrary<std::vector<std::pair<std::string, double>>>())
          logged.first.push_back({name, value});
        if (*rc::gen::arbitrary<bool>())
          logged.second = *rc::gen::arbitrary<std::int64_t>();
        RC_ASSERT(detail::are_real_numbers(logged.first));
        const std::size_t before = buffer.num_bytes();
        buffer.add(logged.first, {logged.second, 0.25 * i});
        RC_ASSERT(
            buffer.num_bytes() - before == NumberBuffer::size_of(logged.first));
      }
      taken.swap(buffer);
      std::size_t offset = 0;
      TrackedValues values{{"left", "over"}};
      for (int i = 0; i < num_calls; ++i) {
        LogTime time{-1, -1};
        offset = taken.read(offset, values, time);
        const Logged& logged = all[static_cast<std::size_t>(i)];
        RC_ASSERT(values == logged.first);
        RC_ASSERT(time.step == logged.second);
        RC_ASSERT(time.seconds == 0.25 * i);
      }
      RC_ASSERT(offset == taken.num_bytes());
      taken.clear();
      RC_ASSERT(taken.num_bytes() == 0u);
    }
  }));
  EXPECT_FALSE(detail::are_real_numbers({{"a", 0.5}, {"b", 1}}));
}

TEST_F(Feed, GivesEachTrackerItsOwnOptions) {
  const auto tracker = std::make_shared<Recorder>();
  {
    TrackerFeed feed({tracker}, options());
    TrackedItem item{{7, 0}, TrackedValues{{"a", 1}}};
    item.kwargs = std::make_shared<TrackerKwargs>(
        TrackerKwargs{{"recorder", {{"commit", true}}}, {"other", {{"b", 1}}}});
    feed.push(std::make_shared<TrackedItem>(item));
  }
  EXPECT_EQ(tracker->calls.front(), "log {'a': 1} at 7 with {'commit': True}");
}

TEST_F(Feed, WarnsOnceOfATrackerThatFailsAndGoesOn) {
  const auto failing = std::make_shared<Failing>();
  const auto working = std::make_shared<Recorder>();
  {
    TrackerFeed feed({failing, working}, options());
    for (int step = 0; step < 4; ++step) feed.push(values({{"a", 1}}, step));
    feed.push_numbers({{"a", 1.0}}, {4, 0});
  }
  EXPECT_THAT(working->calls, SizeIs(6));
  EXPECT_THAT(failing->calls, ElementsAre("finish"));
  EXPECT_THAT(
      warnings(),
      ElementsAre(
          HasSubstr("failing failed (values): no network; training continues"),
          HasSubstr("failing failed 5 times")));
}

TEST_F(Feed, ThrowsWhatStartingThrows) {
  class NoStart final : public GeneralTracker {
   public:
    [[nodiscard]] std::string name() const override { return "none"; }
    void start() override { throw ConfigError("no server"); }
  };
  TrackerFeed feed({std::make_shared<NoStart>()}, options());
  testing::expect_error<ConfigError>([&] { feed.start({}); }, "no server");
}

TEST_F(Feed, SaysOnceWhatAToolDoesNotHave) {
  const auto tracker = std::make_shared<Recorder>();
  {
    TrackerFeed feed({tracker}, options());
    for (int i = 0; i < 3; ++i) {
      feed.push(std::make_shared<TrackedItem>(
          TrackedItem{{}, TrackedFigure{"<svg/>"}, "f"}));
    }
  }
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("recorder has no figures")));
}

TEST_F(Feed, DropsWhatThereIsNoRoomForAndCountsIt) {
  const auto tracker = std::make_shared<Blocked>();
  std::uint64_t num_dropped = 0;
  {
    auto own = options();
    own.most_waiting_bytes = 4 * detail::size_of(*values({{"a", 1}}, 0));
    TrackerFeed feed({tracker}, own);
    feed.push(values({{"a", 1}}, 0));
    tracker->begun.get_future().wait();
    for (int step = 1; step <= 10; ++step) feed.push(values({{"a", 1}}, step));
    num_dropped = feed.num_dropped();
    tracker->let_go.set_value();
  }
  EXPECT_EQ(num_dropped, 6U);
  EXPECT_THAT(tracker->calls, SizeIs(1 + 4 + 1));
  EXPECT_THAT(
      warnings(),
      ElementsAre(
          HasSubstr("slower than the program logs"),
          HasSubstr("6 values, images and the like were lost")));
}

TEST_F(Feed, WaitsForRoomWhereItMustNotDrop) {
  const auto tracker = std::make_shared<Recorder>();
  constexpr int kNumItems = 1000;
  {
    auto own = options();
    own.most_waiting_bytes = 1;
    own.when_full = WhenFull::wait;
    TrackerFeed feed({tracker}, own);
    for (int step = 0; step < kNumItems; ++step)
      feed.push(values({{"a", 1}}, step));
  }
  EXPECT_THAT(tracker->calls, SizeIs(kNumItems + 1));
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(Feed, HasAsMuchRoomForNumbers) {
  const auto tracker = std::make_shared<Blocked>();
  std::uint64_t num_dropped = 0;
  {
    auto own = options();
    own.most_waiting_bytes = 4 * NumberBuffer::size_of({{"a", 1.0}});
    TrackerFeed feed({tracker}, own);
    feed.push_numbers({{"a", 1.0}}, {0, 0});
    tracker->begun.get_future().wait();
    for (int step = 1; step <= 10; ++step)
      feed.push_numbers({{"a", 1.0}}, {step, 0});
    num_dropped = feed.num_dropped();
    tracker->let_go.set_value();
  }
  EXPECT_EQ(num_dropped, 6U);
  EXPECT_THAT(tracker->calls, SizeIs(1 + 4 + 1));
}

TEST_F(Feed, WaitsForRoomForNumbersWhereItMustNotDrop) {
  const auto tracker = std::make_shared<Recorder>();
  constexpr int kNumCalls = 1000;
  {
    auto own = options();
    own.most_waiting_bytes = 1;
    own.when_full = WhenFull::wait;
    TrackerFeed feed({tracker}, own);
    for (int step = 0; step < kNumCalls; ++step)
      feed.push_numbers({{"a", 1.0}}, {step, 0});
  }
  EXPECT_THAT(tracker->calls, SizeIs(kNumCalls + 1));
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(Feed, RunsFunctionsAfterWhatWasPushed) {
  const auto tracker = std::make_shared<Recorder>();
  TrackerFeed feed({tracker}, options());
  feed.push(values({{"a", 1}}, 1));
  std::size_t num_calls = 0;
  feed.run([&] { num_calls = tracker->calls.size(); });
  EXPECT_EQ(num_calls, 1U);
  testing::expect_error<Error>(
      [&] { feed.run([] { throw Error("from there"); }); }, "from there");
}

TEST_F(Feed, IgnoresWhatComesAfterItsEnd) {
  const auto tracker = std::make_shared<Recorder>();
  TrackerFeed feed({tracker}, options());
  feed.finish();
  feed.push(values({{"a", 1}}, 1));
  feed.push_numbers({{"a", 1.0}}, {1, 0});
  feed.flush();
  EXPECT_THAT(tracker->calls, ElementsAre("finish"));
}

}  // namespace tracker_feed_test
}  // namespace
}  // namespace accelerate
