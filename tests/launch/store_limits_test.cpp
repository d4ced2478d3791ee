// Clients that attack the store or overload it.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text/encoding.h"
#include "launch/processes/start_process.h"
#include "launch/raw_store_client.h"
#include "launch/store_server.h"

namespace accelerate::detail {
namespace store_limits_test {

using testing::RawStoreClient;
using testing::StoreMessage;
using Query = StoreQuery;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Collects the server's reports, which come from its thread.
class Reports {
 public:
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// Runs `body` in a child process, since limits are per process. Expects it to
// return true.
void expect_in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool is_right = false;
    try {
      is_right = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    std::_Exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

bool require(bool condition, const char* what) {
  if (!condition) std::fprintf(stderr, "not so: %s\n", what);
  return condition;
}

TEST(StoreSecret, IsDifferentEachTime) {
  const std::string secret = random_token();
  EXPECT_EQ(secret.size(), 32U);
  EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(secret, random_token());
}

TEST(StoreLimits, GarbageHarmsNoOtherClient) {
  const StoreServer server("127.0.0.1", 0);
  RawStoreClient rank(server.port());
  EXPECT_EQ(rank.add("count", 1), 1);
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    RawStoreClient other_client(server.port(), i % 2 == 0);
    std::string bytes(random() % 5000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    other_client.send(bytes);
  }
  EXPECT_EQ(rank.add("count", 1), 2);
}

TEST(StoreLimits, AMessageMayTrickle) {
  const StoreServer server("127.0.0.1", 0);
  RawStoreClient slow(server.port()), other(server.port());
  const std::string value(3U << 20U, 'v');
  const std::string bytes =
      StoreMessage(Query::set).text("key").text(value).bytes();
  slow.send(bytes.substr(0, bytes.size() - 2000));
  for (std::size_t i = bytes.size() - 2000; i < bytes.size(); ++i) {
    slow.send(bytes.substr(i, 1));
    if (i % 100 == 0) {
      EXPECT_TRUE(other.is_served());
    }
  }
  EXPECT_EQ(slow.get("key"), value);
}

TEST(StoreLimits, TooMuchClosesTheClientThatAsked) {
  Reports reports;
  StoreServerOptions options;
  options.limits.max_total_bytes = 4U << 20U;
  options.limits.max_message_bytes = 1U << 20U;
  options.report = reports.sink();
  const StoreServer server("127.0.0.1", 0, options);
  RawStoreClient rank(server.port());
  rank.set("kept", "value");
  {
    RawStoreClient greedy(server.port());
    greedy.send(StoreMessage(Query::set).text("k").length(2U << 20U));
    EXPECT_TRUE(greedy.is_closed());
  }
  RawStoreClient greedy(server.port());
  for (int i = 0; i < 5; ++i) {
    greedy.set(std::to_string(i), std::string(1000U << 10U, 'v'));
  }
  EXPECT_FALSE(greedy.is_served());
  EXPECT_EQ(rank.get("kept"), "value");
  const std::vector<std::string> lines = reports.lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(
      lines[0],
      AllOf(
          HasSubstr("the store closed a connection from 127.0.0.1: it sent"),
          HasSubstr("more than 1048576 bytes")));
  EXPECT_THAT(lines[1], HasSubstr("limit of 4194304 bytes"));
}

TEST(StoreLimits, ReportsAreFew) {
  Reports reports;
  StoreServerOptions options;
  options.report = reports.sink();
  const StoreServer server("127.0.0.1", 0, options);
  for (int i = 0; i < 50; ++i) {
    RawStoreClient other_client(server.port(), false);
    other_client.send("GET / HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(other_client.is_closed());
  }
  const std::vector<std::string> lines = reports.lines();
  ASSERT_EQ(lines.size(), 16U);
  EXPECT_THAT(lines.back(), HasSubstr("the last report of this kind"));
}

// Sanitizers need too much address space.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(StoreLimits, SurvivesWhenThereIsNoMemory) {
  expect_in_child([] {
    constexpr std::size_t kValue = 64U << 20U;
    const StoreServer server("127.0.0.1", 0);
    RawStoreClient rank(server.port());
    const std::string value(kValue, 'v');
    const std::string message =
        StoreMessage(Query::set).text("large").text(value).bytes();
    if (!require(rank.add("count", 1) == 1, "the store works")) return false;
    // Room for two and a half values.
    rlimit limit{};
    ::getrlimit(RLIMIT_AS, &limit);
    long pages = 0;
    if (std::FILE* const file = std::fopen("/proc/self/statm", "r")) {
      if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
      std::fclose(file);
    }
    limit.rlim_cur =
        static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE)) + kValue * 5 / 2;
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return false;
    int num_closed = 0;
    for (int i = 0; i < 6; ++i) {
      RawStoreClient greedy(server.port());
      greedy.send(StoreMessage(Query::set)
                      .text(std::to_string(i))
                      .length(kValue)
                      .bytes());
      greedy.send(value);
      if (!greedy.is_served()) ++num_closed;
    }
    return require(num_closed >= 1, "memory ended") &&
        require(num_closed <= 5, "a value fitted") &&
        require(rank.add("count", 1) == 2, "the rank is still served");
  });
}
#endif

// Listening on all interfaces, where IPv6 is off: the socket still accepts
// IPv4.
TEST(StoreLimits, NeedsNoIpv6) {
  expect_in_child([] {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return true;
    const int control = ::socket(AF_INET, SOCK_DGRAM, 0);
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    const bool is_up = ::ioctl(control, SIOCSIFFLAGS, &loopback) == 0;
    std::ofstream off("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    off << 1 << std::flush;
    if (!is_up || !off) return true;  // not allowed here
    StoreServerOptions options;
    options.is_open = true;
    const StoreServer server("127.0.0.1", 0, options);
    RawStoreClient rank(server.port());
    return require(rank.add("count", 1) == 1, "the rank is served");
  });
}

TEST(StoreLimits, WaitsForDescriptors) {
  expect_in_child([] {
    const StoreServer server("127.0.0.1", 0);
    RawStoreClient rank(server.port());
    if (!require(rank.add("count", 1) == 1, "the store works")) return false;
    // The server cannot accept more connections: only the client's end can get
    // a descriptor.
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(next);
    rlimit low = before;
    low.rlim_cur = static_cast<rlim_t>(next) + 1;
    ::setrlimit(RLIMIT_NOFILE, &low);
    RawStoreClient late(server.port());
    for (int i = 0; i < 20; ++i) {
      if (!require(rank.add("count", 1) == i + 2, "others are served"))
        return false;
    }
    ::setrlimit(RLIMIT_NOFILE, &before);
    return require(late.add("count", 0) == 21, "the late one, too");
  });
}

// Options of a server whose process has 20 descriptors for clients.
StoreServerOptions few_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  StoreServerOptions options;
  options.num_spare_descriptors = static_cast<int>(limit.rlim_cur) - 20;
  return options;
}

TEST(StoreLimits, LeavesDescriptorsToTheLauncher) {
  Reports reports;
  StoreServerOptions options = few_descriptors();
  options.report = reports.sink();
  const StoreServer server("127.0.0.1", 0, options);
  std::vector<std::unique_ptr<RawStoreClient>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<RawStoreClient>(server.port()));
    EXPECT_TRUE(clients.back()->is_served());
  }
  // Without a secret, every client is admitted at its first request.
  for (const auto& client : clients) client->add("count", 1);
  RawStoreClient late(server.port());
  const std::string question =
      StoreMessage(Query::add).text("count").value(std::int64_t{1}).bytes();
  late.send(question);
  // Not answered yet when the others are served again.
  for (const auto& client : clients) EXPECT_EQ(client->add("count", 0), 20);
  EXPECT_THAT(
      reports.lines(),
      ::testing::ElementsAre(AllOf(
          HasSubstr("the store has to keep a connection waiting"),
          HasSubstr("ulimit -n"))));
  clients.pop_back();
  EXPECT_EQ(late.receive<std::int64_t>(), 21);
}

TEST(StoreLimits, OtherClientsMakeRoomForRanks) {
  StoreServerOptions options = few_descriptors();
  options.secret = random_token();
  options.is_of_this_user = [](int) { return false; };
  const StoreServer server("127.0.0.1", 0, options);
  const std::string key = "/" + options.secret + "/count";
  RawStoreClient rank(server.port());
  EXPECT_EQ(rank.add(key, 1), 1);
  std::vector<std::unique_ptr<RawStoreClient>> flood;
  for (int i = 0; i < 100; ++i) {
    flood.push_back(std::make_unique<RawStoreClient>(server.port(), false));
  }
  for (int i = 0; i < 30; ++i) {
    RawStoreClient late(server.port());
    EXPECT_EQ(late.add(key, 1), i + 2);
  }
  EXPECT_EQ(rank.add(key, 1), 32);
  // A free descriptor is left, so the launcher can start a rank.
  const Pipe pipe;
  EXPECT_GE(pipe.write_end(), 0);
}

TEST(StoreAdmission, RefusesOtherClients) {
  Reports reports;
  StoreServerOptions options;
  options.secret = random_token();
  options.is_of_this_user = [](int) { return false; };
  options.report = reports.sink();
  const StoreServer server("127.0.0.1", 0, options);
  RawStoreClient rank(server.port());
  EXPECT_EQ(rank.add("/" + options.secret + "/count", 1), 1);
  RawStoreClient other_client(server.port());
  EXPECT_TRUE(other_client.is_served());
  other_client.send(StoreMessage(Query::get).text("count"));
  EXPECT_TRUE(other_client.is_closed());
  ASSERT_EQ(reports.lines().size(), 1U);
  EXPECT_THAT(
      reports.lines()[0],
      HasSubstr("it did not present the secret of this launch"));
}

TEST(StoreAdmission, AdmitsProcessesOfThisUser) {
  for (const bool is_open : {false, true}) {
    StoreServerOptions options;
    options.secret = random_token();
    options.is_open = is_open;
    const StoreServer server("127.0.0.1", 0, options);
    RawStoreClient python(server.port());
    EXPECT_EQ(python.add("//worker/attempt_0/count", 1), 1);
  }
}

TEST(StoreAdmission, RefusesProcessesOfOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  StoreServerOptions options;
  options.secret = random_token();
  const StoreServer server("127.0.0.1", 0, options);
  const int port = server.port();
  expect_in_child([port] {
    constexpr uid_t kNobody = 65534;
    if (::setresuid(kNobody, kNobody, kNobody) != 0) return false;
    RawStoreClient other_client(port);
    if (!require(other_client.is_served(), "a ping is answered")) return false;
    other_client.send(StoreMessage(Query::num_keys));
    return require(other_client.is_closed(), "a request is refused");
  });
  expect_in_child([port, secret = options.secret] {
    constexpr uid_t kNobody = 65534;
    if (::setresuid(kNobody, kNobody, kNobody) != 0) return false;
    RawStoreClient rank(port);
    return require(rank.add("/" + secret + "/a", 1) == 1, "the secret admits");
  });
}

TEST(StoreAdmission, AdmitsMachinesWhoseLauncherHasJoined) {
  StoreServerOptions options;
  options.secret = random_token();
  options.num_machines = 2;
  options.is_of_this_user = [](int) { return false; };
  const StoreServer server("127.0.0.1", 0, options);
  {
    RawStoreClient early(server.port());
    early.send(StoreMessage(Query::num_keys));
    EXPECT_TRUE(early.is_closed());
  }
  RawStoreClient launcher(server.port());
  launcher.send(StoreMessage(Query::join).value(std::uint32_t{1}).text(""));
  EXPECT_EQ(launcher.receive<StoreJoinAnswer>(), StoreJoinAnswer::admitted);
  EXPECT_EQ(launcher.receive_text(), options.secret);
  RawStoreClient rank(server.port());
  EXPECT_EQ(rank.add("//worker/attempt_0/count", 1), 1);
}

}  // namespace store_limits_test
}  // namespace accelerate::detail
