#include "launch/store_server.h"

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <accelerate/error.h>
#include <accelerate/world.h>

#include "comm/rendezvous/store.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace store_server_test {

using std::chrono::milliseconds;
using testing::expect_error;
using Bytes = std::vector<std::uint8_t>;

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

// Returns LibTorch's client for the store.
c10::intrusive_ptr<c10d::TCPStore> client_of(
    const StoreServer& server,
    milliseconds timeout = milliseconds(20000)) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(server.port());
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST(StoreServer, AnswersLibTorchsClient) {
  const StoreServer server("127.0.0.1", 0);
  const auto store = client_of(server);
  store->set("a", bytes("one"));
  EXPECT_EQ(text(store->get("a")), "one");
  EXPECT_EQ(store->add("count", 5), 5);
  EXPECT_EQ(store->add("count", -7), -2);
  EXPECT_EQ(text(store->get("count")), "-2");
  EXPECT_TRUE(store->check({"a", "count"}));
  EXPECT_FALSE(store->check({"a", "b"}));
  EXPECT_EQ(store->getNumKeys(), 2);
  EXPECT_TRUE(store->deleteKey("a"));
  EXPECT_FALSE(store->deleteKey("a"));
  EXPECT_EQ(store->getNumKeys(), 1);
}

TEST(StoreServer, ComparesAndSets) {
  const StoreServer server("127.0.0.1", 0);
  const auto store = client_of(server);
  EXPECT_EQ(text(store->compareSet("k", bytes("x"), bytes("y"))), "x");
  EXPECT_FALSE(store->check({"k"}));
  EXPECT_EQ(text(store->compareSet("k", bytes(""), bytes("first"))), "first");
  EXPECT_EQ(text(store->compareSet("k", bytes("other"), bytes("z"))), "first");
  EXPECT_EQ(
      text(store->compareSet("k", bytes("first"), bytes("second"))), "second");
}

TEST(StoreServer, TakesSeveralAtOnce) {
  const StoreServer server("127.0.0.1", 0);
  const auto store = client_of(server);
  store->multiSet({"a", "b"}, {bytes("1"), bytes("")});
  const auto values = store->multiGet({"b", "a"});
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(text(values[0]), "");
  EXPECT_EQ(text(values[1]), "1");
  store->append("a", bytes("23"));
  store->append("new", bytes("4"));
  EXPECT_EQ(text(store->get("a")), "123");
  EXPECT_EQ(text(store->get("new")), "4");
}

TEST(StoreServer, CarriesLargeValues) {
  const StoreServer server("127.0.0.1", 0);
  const auto store = client_of(server);
  Bytes large(9U << 20U);
  for (std::size_t i = 0; i < large.size(); ++i) {
    large[i] = static_cast<std::uint8_t>(i * 7 + i / 1000);
  }
  store->set("large", large);
  EXPECT_TRUE(store->get("large") == large);
}

TEST(StoreServer, LetsClientsWaitForEachOther) {
  const StoreServer server("127.0.0.1", 0);
  constexpr int kClients = 8;
  std::vector<std::thread> threads;
  std::vector<std::string> seen(kClients);
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      const auto store = client_of(server);
      // Each client waits for the one before it, and then for the last.
      if (i != 0) store->wait({"from" + std::to_string(i - 1)});
      store->set("from" + std::to_string(i), bytes(std::to_string(i)));
      store->wait({"from" + std::to_string(kClients - 1), "from0"});
      seen[static_cast<std::size_t>(i)] =
          text(store->get("from" + std::to_string(kClients - 1)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(seen, ::testing::Each("7"));
}

TEST(StoreServer, EndsAWaitThatIsCancelled) {
  const StoreServer server("127.0.0.1", 0);
  const auto store = client_of(server);
  EXPECT_THROW(store->wait({"never"}, milliseconds(30)), c10::Error);
  // The connection still works.
  store->set("later", bytes("1"));
  EXPECT_EQ(text(store->get("later")), "1");
}

TEST(StoreServer, ForgetsClientsThatAreGone) {
  const StoreServer server("127.0.0.1", 0);
  for (int i = 0; i < 200; ++i) client_of(server)->add("count", 1);
  EXPECT_EQ(client_of(server)->add("count", 0), 200);
}

TEST(StoreServer, DropsClientsOfOtherProtocols) {
  const StoreServer server("127.0.0.1", 0);
  const int other_client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(server.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(
      ::connect(
          other_client, reinterpret_cast<sockaddr*>(&address), sizeof address),
      0);
  const std::string question = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_GT(::send(other_client, question.data(), question.size(), 0), 0);
  char byte = 0;
  EXPECT_LE(::recv(other_client, &byte, 1, 0), 0);
  ::close(other_client);
  EXPECT_EQ(client_of(server)->add("count", 1), 1);
}

TEST(StoreServer, ServesThisLibrarysStore) {
  const StoreServer server("127.0.0.1", 0);
  const Store store =
      Store::tcp("127.0.0.1", server.port(), false, milliseconds(5000))
          .with_prefix("attempt_0");
  store.set("key", "value");
  EXPECT_EQ(store.get("key"), "value");
  const auto raw = client_of(server);
  EXPECT_TRUE(raw->check({"attempt_0/key"}));
}

TEST(StoreServer, KnowsLibTorchsClientsByTheSecretInTheirPrefix) {
  const std::string secret = "0123456789abcdef";
  StoreServerOptions options;
  options.secret = secret;
  options.is_of_this_user = [](int) { return false; };
  const StoreServer server("127.0.0.1", 0, options);
  const Store base =
      Store::tcp("127.0.0.1", server.port(), false, milliseconds(5000));
  const Store store = base.with_prefix(secret + "/attempt_0");
  store.set("key", "value");
  EXPECT_EQ(store.get("key"), "value");
  // A clone is a separate connection, and also sends the secret.
  const auto clone = own_client(store);
  EXPECT_EQ(text(clone->get("key")), "value");
}

TEST(StoreServer, RefusesLibTorchsClientsWithoutTheSecret) {
  StoreServerOptions options;
  options.secret = "0123456789abcdef";
  options.is_of_this_user = [](int) { return false; };
  const StoreServer server("127.0.0.1", 0, options);
  const Store store =
      Store::tcp("127.0.0.1", server.port(), false, milliseconds(5000));
  expect_error<DistributedError>(
      [&] { static_cast<void>(store.has("key")); }, "look up \"key\"");
}

TEST(StoreServer, AdmitsLibTorchsClientsOfThisUser) {
  const StoreServer server("127.0.0.1", 0, {.secret = "0123456789abcdef"});
  const auto python = c10::make_intrusive<c10d::PrefixStore>(
      "/worker/attempt_0", client_of(server));
  EXPECT_EQ(python->add("count", 1), 1);
}

TEST(StoreServer, KeepsItsPortToItself) {
  std::set<int> ports;
  std::vector<std::unique_ptr<StoreServer>> held;
  for (int i = 0; i < 200; ++i) {
    held.push_back(std::make_unique<StoreServer>("127.0.0.1", 0));
    EXPECT_TRUE(ports.insert(held.back()->port()).second);
  }
}

TEST(StoreServer, RefusesAPortThatIsTaken) {
  const StoreServer server("127.0.0.1", 0);
  expect_error<ConfigError>(
      [&] { const StoreServer other("127.0.0.1", server.port()); },
      "is taken by another program");
}

TEST(StoreServer, FreesItsPortAtTheEnd) {
  int port = 0;
  {
    const StoreServer server("127.0.0.1", 0);
    port = server.port();
    client_of(server)->set("a", bytes("1"));
  }
  const StoreServer again("127.0.0.1", port);
  EXPECT_EQ(again.port(), port);
}

TEST(StoreServer, ListensOnAllInterfacesIfAsked) {
  const StoreServer server("127.0.0.1", 0, {.is_open = true});
  EXPECT_EQ(client_of(server)->add("count", 1), 1);
}

TEST(StoreServer, RefusesAnAddressOfAnotherMachine) {
  expect_error<ConfigError>(
      [] { const StoreServer server("192.0.2.1", 0); }, "cannot listen");
  expect_error<ConfigError>(
      [] { const StoreServer server("no.such.host.invalid", 0); },
      "must be an address of this machine");
}

}  // namespace store_server_test
}  // namespace accelerate::detail
