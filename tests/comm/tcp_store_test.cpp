#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <accelerate/error.h>

#include "base/machine/network.h"
#include "comm/rendezvous/tcp_store.h"
#include "launch/store_server.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace tcp_store_test {

using std::chrono::milliseconds;
using testing::expect_error;
using Bytes = std::vector<std::uint8_t>;

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

struct RunningServer {
  int port;
  std::shared_ptr<void> server;
};

RunningServer start_ours() {
  auto server = std::make_shared<StoreServer>("127.0.0.1", 0);
  const int port = server->port();
  return {port, std::move(server)};
}

// Starts LibTorch's store as torchrun's agent does.
RunningServer start_libtorchs() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  auto store = std::make_shared<c10::intrusive_ptr<c10d::TCPStore>>(
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
  const int port = (*store)->getPort();
  return {port, std::move(store)};
}

struct Kind {
  const char* name;
  RunningServer (*start)();
};

class TcpStoreOf : public ::testing::TestWithParam<Kind> {
 protected:
  RunningServer server_ = GetParam().start();

  [[nodiscard]] c10::intrusive_ptr<TcpStore> client(
      milliseconds timeout = milliseconds(20000)) const {
    return c10::make_intrusive<TcpStore>("127.0.0.1", server_.port, timeout);
  }
};

TEST_P(TcpStoreOf, SetsGetsAndCounts) {
  const auto store = client();
  const Bytes any{0, 1, 255, '\n'};
  store->set("a", any);
  EXPECT_EQ(store->get("a"), any);
  store->set("empty", Bytes());
  EXPECT_EQ(store->get("empty"), Bytes());
  EXPECT_EQ(store->add("count", 5), 5);
  EXPECT_EQ(store->add("count", -7), -2);
  EXPECT_EQ(text(store->get("count")), "-2");
  EXPECT_TRUE(store->check({"a", "count"}));
  EXPECT_FALSE(store->check({"a", "b"}));
  const std::int64_t keys = store->getNumKeys();
  EXPECT_TRUE(store->deleteKey("a"));
  EXPECT_FALSE(store->deleteKey("a"));
  EXPECT_EQ(store->getNumKeys(), keys - 1);
}

TEST_P(TcpStoreOf, HasTheExtendedOperations) {
  const auto store = client();
  ASSERT_TRUE(store->hasExtendedApi());
  store->multiSet({"a", "b"}, {bytes("one"), bytes("two")});
  store->append("b", bytes("!"));
  EXPECT_EQ(
      store->multiGet({"b", "a"}),
      (std::vector<Bytes>{bytes("two!"), bytes("one")}));
  EXPECT_EQ(text(store->compareSet("a", bytes("one"), bytes("1"))), "1");
  EXPECT_EQ(text(store->compareSet("a", bytes("one"), bytes("2"))), "1");
  EXPECT_EQ(text(store->get("a")), "1");
}

TEST_P(TcpStoreOf, TakesValuesOfManyBlocks) {
  const auto store = client();
  Bytes large(5'000'000);
  for (std::size_t i = 0; i < large.size(); ++i)
    large[i] = static_cast<std::uint8_t>(i * 7);
  store->set("large", large);
  EXPECT_EQ(client()->get("large"), large);
}

TEST_P(TcpStoreOf, SharesKeysWithLibTorchsClient) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(server_.port);
  options.waitWorkers = false;
  const auto theirs = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto ours = c10::make_intrusive<c10d::PrefixStore>("run", client());
  c10d::PrefixStore prefixed("run", theirs);
  ours->set("key", bytes("ours"));
  EXPECT_EQ(text(prefixed.get(std::string("key"))), "ours");
  prefixed.set("answer", bytes("theirs"));
  EXPECT_EQ(text(ours->get(std::string("answer"))), "theirs");
}

TEST_P(TcpStoreOf, WaitsForTheKeyOfAnotherClient) {
  const auto store = client();
  const auto clone = store->clone();
  std::thread other([&] { clone->set("late", bytes("x")); });
  store->wait({"late"});
  EXPECT_EQ(text(store->get("late")), "x");
  other.join();
}

TEST_P(TcpStoreOf, NamesTheKeysThatDidNotComeAndGoesOn) {
  const auto store = client();
  expect_error<c10::DistStoreError>(
      [&] { store->wait({"a", "b", "c", "d"}, milliseconds(30)); },
      "wait timeout after 30ms, keys: \"a\", \"b\", \"c\" and 1 more");
  store->setTimeout(milliseconds(20));
  expect_error<c10::DistStoreError>([&] { store->get("a"); }, "keys: \"a\"");
  store->setTimeout(milliseconds(20000));
  store->set("a", bytes("x"));
  EXPECT_EQ(text(store->get("a")), "x");
}

TEST_P(TcpStoreOf, TakesCallsOfSeveralThreads) {
  const auto store = client();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) store->add("sum", 1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store->add("sum", 0), 800);
}

INSTANTIATE_TEST_SUITE_P(
    Servers,
    TcpStoreOf,
    ::testing::Values(
        Kind{"Ours", &start_ours},
        Kind{"LibTorchs", &start_libtorchs}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(TcpStore, FailsAtEveryCallAfterTheServerHasGone) {
  RunningServer server = start_ours();
  TcpStore store("127.0.0.1", server.port, milliseconds(5000));
  server.server.reset();
  const std::string address = "127.0.0.1:" + std::to_string(server.port);
  expect_error<c10::DistNetworkError>(
      [&] { store.add("a", 1); },
      "the store at " + address + " closed the connection");
  expect_error<c10::DistNetworkError>(
      [&] { store.add("a", 1); }, "after an earlier failure");
}

TEST(TcpStore, SaysThatNoServerListens) {
  int port = 0;
  {
    const StoreServer server("127.0.0.1", 0);
    port = server.port();
  }
  expect_error<DistributedError>(
      [&] { TcpStore("127.0.0.1", port, milliseconds(20)); },
      "is rank 0 running");
}

TEST(TcpStore, SaysThatSomethingElseListens) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(
      ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address),
      0);
  ASSERT_EQ(::listen(listener, 1), 0);
  std::thread other([&] { ::close(::accept(listener, nullptr, nullptr)); });
  expect_error<DistributedError>(
      [&] { TcpStore("127.0.0.1", own_port(listener), milliseconds(5000)); },
      "does not answer as a store");
  other.join();
  ::close(listener);
}

}  // namespace tcp_store_test
}  // namespace accelerate::detail
