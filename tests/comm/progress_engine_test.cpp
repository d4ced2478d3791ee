// When the thread that drives a connection in the background wakes up.
#include "comm/transport/shared_memory/progress/progress_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "comm/transport/shared_memory/memory/layout.h"
#include "comm/transport/shared_memory/operations/messages.h"

namespace accelerate::detail {
namespace progress_engine_test {

using Bytes = std::vector<std::byte>;

/// Two ranks in one process, in borrowed memory.
class ProgressEngineTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 2;

  ProgressEngineTest() {
    for (int rank = 0; rank < kRanks; ++rank) {
      engines_.push_back(std::make_unique<ProgressEngine>(
          SharedSegment::borrow(memory(), bytes()),
          rank,
          kRanks,
          ProgressEngineOptions{
              .timeout = std::chrono::minutes(2), .world_ranks = {0, 1}}));
      engines_.back()->announce();
    }
    for (const auto& engine : engines_) engine->watch_peers();
  }

  ProgressEngine& engine(int rank) {
    return *engines_[static_cast<std::size_t>(rank)];
  }
  RankPage& page(int rank) {
    return SegmentLayout(kRanks).page(memory(), rank);
  }

  std::shared_ptr<Message> send(int from, Bytes& bytes) {
    return begin(from, Message::Direction::send, bytes);
  }
  std::shared_ptr<Message> receive(int to, Bytes& bytes) {
    return begin(to, Message::Direction::receive, bytes);
  }

  void await(int rank, Attention attention) {
    while (page(rank).attention.load() != attention) std::this_thread::yield();
  }

 private:
  std::shared_ptr<Message>
  begin(int rank, Message::Direction direction, Bytes& bytes) {
    auto message = std::make_shared<Message>(
        direction, 1 - rank, /*tag=*/0, HostMemory(bytes.data(), bytes.size()));
    engine(rank).begin(message);
    return message;
  }

  static std::size_t bytes() { return SegmentLayout(kRanks).total_bytes(); }
  std::byte* memory() {
    constexpr std::size_t kPage = 4096;
    auto* const first = memory_.data();
    const auto offset = reinterpret_cast<std::uintptr_t>(first) % kPage;
    return first + (kPage - offset) % kPage;
  }

  Bytes memory_ = Bytes(SegmentLayout(kRanks).total_bytes() + 4096);
  std::vector<std::unique_ptr<ProgressEngine>> engines_;
};

TEST_F(ProgressEngineTest, SleepsThroughMessagesThatFit) {
  Bytes sent(1000, std::byte{7}), received(1000);
  const auto arriving = receive(0, received);
  engine(0).run_in_background();
  await(0, Attention::full_channels);
  const auto bell = page(0).background_bell.load();
  EXPECT_TRUE(send(1, sent)->is_finished());
  EXPECT_EQ(page(0).background_bell.load(), bell);
  engine(0).wait(*arriving);
  EXPECT_EQ(received, sent);
}

TEST_F(ProgressEngineTest, WakesForMessagesThatDoNotFit) {
  Bytes sent(3'000'000, std::byte{7}), received(sent.size());
  const auto arriving = receive(0, received);
  engine(0).run_in_background();
  await(0, Attention::full_channels);
  const auto bell = page(0).background_bell.load();
  const auto leaving = send(1, sent);
  engine(1).run_in_background();
  while (!arriving->is_finished()) std::this_thread::yield();
  EXPECT_NE(page(0).background_bell.load(), bell);
  EXPECT_EQ(received, sent);
  engine(1).wait(*leaving);
}

// No rank reads what fills the channel until a later message lacks room.
TEST_F(ProgressEngineTest, WakesForTheFirstMessageWithoutRoom) {
  Bytes sent(100'000, std::byte{7}), received(sent.size());
  const auto arriving = receive(0, received);
  engine(0).run_in_background();
  await(0, Attention::full_channels);
  std::vector<std::shared_ptr<Message>> leaving;
  for (int i = 0; i < 3; ++i) leaving.push_back(send(1, sent));
  engine(1).run_in_background();
  while (!leaving.back()->is_finished()) std::this_thread::yield();
  // Rank 0 makes room before it finishes what it has received.
  while (!arriving->is_finished()) std::this_thread::yield();
  EXPECT_EQ(received, sent);
}

TEST_F(ProgressEngineTest, WakesForListeners) {
  Bytes sent(1000, std::byte{7}), received(1000);
  const auto arriving = receive(0, received);
  engine(0).run_in_background();
  await(0, Attention::full_channels);
  std::atomic<bool> is_told{false};
  engine(0).on_finish(*arriving, [&] { is_told.store(true); });
  await(0, Attention::everything);
  send(1, sent);
  while (!is_told.load()) std::this_thread::yield();
  EXPECT_EQ(received, sent);
}

TEST_F(ProgressEngineTest, SendsWithoutWakingItsWorker) {
  Bytes sent(1000, std::byte{7}), received(1000), unsent(1000);
  const auto arriving = receive(0, unsent);
  int num_at_once = 0;
  for (int i = 0; num_at_once < 10; ++i) {
    ASSERT_LT(i, 10'000);
    engine(0).run_in_background();
    await(0, Attention::full_channels);
    const auto leaving = send(0, sent);
    // Not if the worker was just checking whether rank 1 is alive.
    if (leaving->is_finished()) ++num_at_once;
    engine(0).wait(*leaving);
    engine(1).wait(*receive(1, received));
    EXPECT_EQ(received, sent);
  }
  EXPECT_FALSE(arriving->is_finished());
}

TEST_F(ProgressEngineTest, TestsWithoutWaiting) {
  Bytes sent(1000, std::byte{7}), received(1000);
  const auto arriving = receive(0, received);
  EXPECT_FALSE(engine(0).test(*arriving));
  send(1, sent);
  EXPECT_TRUE(engine(0).test(*arriving));
  EXPECT_EQ(received, sent);
}

}  // namespace progress_engine_test
}  // namespace accelerate::detail
