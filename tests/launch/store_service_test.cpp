#include "launch/store_service.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <list>
#include <string>

#include <gmock/gmock.h>

#include "launch/raw_store_client.h"

namespace accelerate::detail {
namespace store_service_test {

using testing::StoreMessage;
using Query = StoreQuery;
using ::testing::HasSubstr;

const std::string kSecret = "0123456789abcdef0123456789abcdef";

/// A store without sockets, with its clients.
class Clients {
 public:
  explicit Clients(StoreService::Options options = {})
      : limits_(options.limits), service_(std::move(options)) {}
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;
  ~Clients() {
    for (StoreSession& session : sessions_) service_.close(session);
  }

  StoreSession& connect(bool is_trusted = false) {
    StoreSession& session =
        sessions_.emplace_back(limits_, [is_trusted] { return is_trusted; });
    service_.open(session);
    send(session, StoreMessage(Query::validate).value(kStoreMagic).bytes());
    return session;
  }
  void send(StoreSession& session, const std::string& bytes) {
    service_.receive(session, bytes);
  }
  void send(StoreSession& session, const StoreMessage& message) {
    send(session, message.bytes());
  }
  // The refusal that the message causes; empty if there is none.
  std::string refusal_of(StoreSession& session, const StoreMessage& message) {
    try {
      send(session, message);
    } catch (const StoreRefusal& refusal) {
      return refusal.what();
    }
    return {};
  }
  // Takes all answers that are ready.
  std::string answers(StoreSession& session) {
    std::string all;
    while (!session.unsent().empty()) {
      const std::string_view unsent = session.unsent();
      all += unsent;
      session.mark_sent(unsent.size());
      service_.resume(session);
    }
    return all;
  }
  std::int64_t add(StoreSession& session, std::int64_t amount) {
    send(session, StoreMessage(Query::add).text("count").value(amount));
    std::int64_t sum = 0;
    const std::string bytes = answers(session);
    EXPECT_EQ(bytes.size(), sizeof sum);
    std::memcpy(&sum, bytes.data(), std::min(bytes.size(), sizeof sum));
    return sum;
  }
  StoreService& service() { return service_; }

 private:
  StoreLimits limits_;
  StoreService service_;
  std::list<StoreSession> sessions_;
};

std::string text_answer(const std::string& text) {
  const std::uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}

TEST(StoreRequestReader, ReadsAMessageByteByByte) {
  const std::string bytes = StoreMessage(Query::multi_set)
                                .length(2)
                                .text("a")
                                .text("")
                                .text("key")
                                .text(std::string(100000, 'v'))
                                .bytes();
  StoreRequestReader reader{StoreLimits()};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(reader.is_complete());
    EXPECT_EQ(reader.read(std::string_view(bytes).substr(i, 1)), 1U);
  }
  ASSERT_TRUE(reader.is_complete());
  EXPECT_EQ(reader.request().query, Query::multi_set);
  EXPECT_THAT(
      reader.request().strings,
      ::testing::ElementsAre("a", "", "key", std::string(100000, 'v')));
  // A string grows by doubling, but not beyond its size.
  EXPECT_LE(reader.memory(), 100000U + 1000);
}

TEST(StoreRequestReader, LeavesTheNextMessage) {
  const std::string first = StoreMessage(Query::get).text("k").bytes();
  StoreRequestReader reader{StoreLimits()};
  EXPECT_EQ(reader.read(first + "more"), first.size());
  EXPECT_TRUE(reader.is_complete());
  EXPECT_EQ(reader.read("more"), 0U);
  reader.start_next();
  EXPECT_EQ(reader.memory(), 0U);
  EXPECT_EQ(reader.read(StoreMessage(Query::num_keys).bytes()), 1U);
  EXPECT_TRUE(reader.is_complete());
}

TEST(StoreRequestReader, TakesNoMemoryForAnnouncedLengths) {
  StoreRequestReader reader{StoreLimits()};
  reader.read(StoreMessage(Query::set)
                  .text("key")
                  .length(StoreLimits().max_message_bytes - 3)
                  .bytes());
  EXPECT_LE(reader.memory(), 200U);
}

TEST(StoreService, RefusesWhatIsBeyondItsLimits) {
  StoreService::Options options;
  options.limits = {
      .max_key_bytes = 10,
      .max_keys_per_message = 3,
      .max_message_bytes = 100,
      .max_total_bytes = 1U << 20U};
  const auto refusal = [&](const StoreMessage& message) {
    Clients clients(options);
    return clients.refusal_of(clients.connect(), message);
  };
  EXPECT_THAT(
      refusal(StoreMessage(Query::get).length(11)),
      HasSubstr("a key of 11 bytes, but the store accepts at most 10"));
  EXPECT_THAT(
      refusal(StoreMessage(Query::check).length(4)),
      HasSubstr("4 keys, but the store accepts at most 3"));
  EXPECT_THAT(
      refusal(StoreMessage(Query::set).text("key").length(98)),
      HasSubstr("more than 100 bytes"));
  EXPECT_THAT(
      refusal(StoreMessage(Query::set).text("key").length(~0ULL)),
      HasSubstr("more than 100 bytes"));
  EXPECT_EQ(
      refusal(StoreMessage(Query::set).text("key").text(std::string(97, 'v'))),
      "");
  EXPECT_THAT(
      refusal(StoreMessage(static_cast<Query>(99))), HasSubstr("query 99"));
}

TEST(StoreService, BoundsValuesThatGrowAndAnswersOfManyValues) {
  StoreService::Options options;
  options.limits.max_message_bytes = 1000;
  Clients clients(options);
  StoreSession& client = clients.connect();
  const std::string part(400, 'p');
  clients.send(client, StoreMessage(Query::append).text("k").text(part));
  clients.send(client, StoreMessage(Query::append).text("k").text(part));
  EXPECT_THAT(
      clients.refusal_of(
          client, StoreMessage(Query::append).text("k").text(part)),
      HasSubstr("appended to the key \"k\""));
  StoreSession& other = clients.connect();
  clients.send(other, StoreMessage(Query::get).text("k"));
  EXPECT_EQ(clients.answers(other), text_answer(part + part));
  EXPECT_THAT(
      clients.refusal_of(
          other, StoreMessage(Query::multi_get).length(2).text("k").text("k")),
      HasSubstr("requested 1616 bytes of values"));
}

TEST(StoreService, BoundsTheSumOfAllValues) {
  StoreService::Options options;
  options.limits.max_total_bytes = 1U << 20U;
  Clients clients(options);
  StoreSession* const client = &clients.connect();
  const std::string value(1000, 'v');
  int num_set = 0;
  std::string refusal;
  for (; refusal.empty() && num_set < 5000; ++num_set) {
    refusal = clients.refusal_of(
        *client,
        StoreMessage(Query::set).text(std::to_string(num_set)).text(value));
  }
  EXPECT_THAT(refusal, HasSubstr("the store's limit of 1048576 bytes"));
  EXPECT_GT(num_set, 500);
  EXPECT_LE(clients.service().memory(), (1U << 20U) + 10000);
  // Deleting a key makes room again.
  StoreSession& other = clients.connect();
  for (int i = 0; i < 10; ++i) {
    clients.send(
        other, StoreMessage(Query::delete_key).text(std::to_string(i)));
  }
  clients.service().close(*client);
  EXPECT_EQ(
      clients.refusal_of(other, StoreMessage(Query::set).text("k").text(value)),
      "");
}

TEST(StoreService, CountsAllItsMemoryBack) {
  Clients clients;
  StoreSession& client = clients.connect();
  const std::uint64_t before = clients.service().memory();
  clients.send(
      client, StoreMessage(Query::set).text("k").text(std::string(500, 'v')));
  clients.send(
      client, StoreMessage(Query::set).text("k").text(std::string(90, 'w')));
  clients.send(
      client,
      StoreMessage(Query::append).text("k").text(std::string(9000, 'x')));
  EXPECT_GT(clients.service().memory(), before + 9000);
  clients.send(client, StoreMessage(Query::delete_key).text("k"));
  clients.answers(client);
  clients.send(client, StoreMessage(Query::num_keys));
  EXPECT_LE(clients.service().memory(), before + 20000);
  EXPECT_EQ(clients.service().num_keys(), 0U);
}

TEST(StoreService, LetsMessagesWaitForUnreadAnswers) {
  Clients clients;
  StoreSession& client = clients.connect();
  const std::string value(100000, 'v');
  clients.send(client, StoreMessage(Query::set).text("k").text(value));
  std::string questions;
  for (int i = 0; i < 50; ++i) {
    questions += StoreMessage(Query::get).text("k").bytes();
  }
  clients.send(client, questions);
  EXPECT_FALSE(client.wants_input());
  EXPECT_LE(client.unsent().size(), 100100U);
  const std::string answers = clients.answers(client);
  EXPECT_EQ(answers.size(), 50 * (value.size() + 8));
  EXPECT_TRUE(client.wants_input());
}

TEST(StoreService, AddsWithoutOverflow) {
  Clients clients;
  StoreSession& client = clients.connect();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(clients.add(client, kMost), kMost);
  EXPECT_EQ(clients.add(client, 1), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(clients.add(client, -1), kMost);
}

TEST(StoreService, RefusesToAddToAText) {
  Clients clients({.secret = kSecret});
  StoreSession& client = clients.connect();
  const std::string key = "/" + kSecret + "/co\nunt";
  clients.send(client, StoreMessage(Query::set).text(key).text("junk"));
  const std::string refusal = clients.refusal_of(
      client, StoreMessage(Query::add).text(key).value(std::int64_t{1}));
  EXPECT_THAT(refusal, HasSubstr("the key \"co?unt\", whose value is not"));
}

TEST(StoreService, WakesAClientWhenTheLastOfItsKeysIsSet) {
  Clients clients;
  StoreSession& waiting = clients.connect();
  StoreSession& other = clients.connect();
  clients.send(
      waiting, StoreMessage(Query::wait).length(2).text("a").text("b"));
  clients.send(other, StoreMessage(Query::set).text("b").text("1"));
  EXPECT_EQ(waiting.unsent().size(), 0U);
  clients.send(
      other, StoreMessage(Query::compare_set).text("a").text("").text("1"));
  EXPECT_EQ(clients.answers(waiting), std::string(1, '\0'));
}

TEST(StoreService, AdmitsByTheFirstKeyOnly) {
  Clients clients({.secret = kSecret});
  const std::string key = "/" + kSecret + "/a";
  StoreSession& rank = clients.connect();
  clients.send(rank, StoreMessage(Query::set).text(key).text("1"));
  // From now on any key is accepted.
  clients.send(rank, StoreMessage(Query::set).text("other").text("2"));
  EXPECT_EQ(clients.service().num_keys(), 2U);

  const std::string wrong = "/" + std::string(32, 'f') + "/a";
  for (const StoreMessage& message :
       {StoreMessage(Query::get).text("other"),
        StoreMessage(Query::get).text(wrong),
        StoreMessage(Query::get).text("/" + kSecret),
        StoreMessage(Query::get).text(""),
        StoreMessage(Query::set).text("other").text("3"),
        // The value need not arrive.
        StoreMessage(Query::set).text("other").length(1000),
        StoreMessage(Query::multi_get).length(2).text("other").text(key),
        StoreMessage(Query::check).length(0),
        StoreMessage(Query::cancel_wait),
        StoreMessage(Query::num_keys)}) {
    StoreSession& other_client = clients.connect();
    EXPECT_THAT(
        clients.refusal_of(other_client, message),
        HasSubstr("did not present the secret"));
    EXPECT_EQ(other_client.unsent().size(), 0U);
  }
  clients.send(rank, StoreMessage(Query::get).text("other"));
  EXPECT_EQ(clients.answers(rank), text_answer("2"));
}

TEST(StoreService, AdmitsTrustedClientsWithoutTheSecret) {
  Clients clients({.secret = kSecret});
  StoreSession& python = clients.connect(true);
  clients.send(
      python, StoreMessage(Query::set).text("//worker/attempt_0/a").text("1"));
  EXPECT_EQ(clients.service().num_keys(), 1U);
}

TEST(StoreService, RefusesClientsWithoutTheMagicNumber) {
  Clients clients;
  StoreSession session(StoreLimits(), [] { return true; });
  clients.service().open(session);
  EXPECT_THAT(
      clients.refusal_of(session, StoreMessage(Query::get).text("k")),
      HasSubstr("does not speak"));
  clients.service().close(session);
  StoreSession other(StoreLimits(), [] { return true; });
  clients.service().open(other);
  EXPECT_THAT(
      clients.refusal_of(other, StoreMessage(Query::validate).value(7U)),
      HasSubstr("does not speak"));
  clients.service().close(other);
}

std::string join_answer(StoreJoinAnswer answer, const std::string& secret) {
  return std::string(1, static_cast<char>(answer)) + text_answer(secret);
}
StoreMessage join_as(std::uint32_t machine, const std::string& given = "") {
  return StoreMessage(Query::join).value(machine).text(given);
}

TEST(StoreService, LetsEachMachineJoinOnce) {
  Clients clients({.secret = kSecret, .num_machines = 3});
  StoreSession& first = clients.connect();
  clients.send(first, join_as(1));
  EXPECT_EQ(
      clients.answers(first), join_answer(StoreJoinAnswer::admitted, kSecret));
  EXPECT_TRUE(first.is_admitted());
  StoreSession& late = clients.connect();
  clients.send(late, join_as(1));
  EXPECT_EQ(
      clients.answers(late), join_answer(StoreJoinAnswer::machine_taken, ""));
  EXPECT_FALSE(late.is_admitted());
  // A launcher that ended can be replaced.
  clients.service().close(first);
  clients.send(late, join_as(1));
  EXPECT_EQ(
      clients.answers(late), join_answer(StoreJoinAnswer::admitted, kSecret));
  for (const std::uint32_t machine : {0U, 3U, ~0U}) {
    EXPECT_THAT(
        clients.refusal_of(clients.connect(), join_as(machine)),
        HasSubstr("this launch has machines 0 to 2"));
  }
}

TEST(StoreService, TellsWhichLaunchersAreConnected) {
  Clients clients({.secret = kSecret, .num_machines = 3});
  const std::string key = "/" + kSecret + "/" + connection_key(2);
  StoreSession& reader = clients.connect();
  const auto value = [&] {
    clients.send(reader, StoreMessage(Query::get).text(key));
    return clients.answers(reader);
  };
  EXPECT_EQ(value(), text_answer(""));
  StoreSession& launcher = clients.connect();
  clients.send(launcher, join_as(2));
  EXPECT_EQ(value(), text_answer("1"));
  clients.service().close(launcher);
  clients.service().close(launcher);
  EXPECT_EQ(value(), text_answer("0"));
  StoreSession& next = clients.connect();
  clients.send(next, join_as(2));
  EXPECT_EQ(value(), text_answer("1"));
}

TEST(StoreService, ComparesSecretsThatLaunchersWereGiven) {
  Clients shared(
      {.secret = kSecret, .num_machines = 2, .is_secret_shared = true});
  for (const std::string& wrong : {std::string(), kSecret + "0"}) {
    StoreSession& other_client = shared.connect();
    shared.send(other_client, join_as(1, wrong));
    EXPECT_EQ(
        shared.answers(other_client),
        join_answer(StoreJoinAnswer::wrong_secret, ""));
  }
  StoreSession& right = shared.connect();
  shared.send(right, join_as(1, kSecret));
  EXPECT_TRUE(right.is_admitted());
  // Only one launcher was given a secret.
  Clients unshared({.secret = kSecret, .num_machines = 2});
  StoreSession& other = unshared.connect();
  unshared.send(other, join_as(1, std::string(32, 'f')));
  EXPECT_EQ(
      unshared.answers(other), join_answer(StoreJoinAnswer::wrong_secret, ""));
}

}  // namespace store_service_test
}  // namespace accelerate::detail
