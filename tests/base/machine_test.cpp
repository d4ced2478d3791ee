#include <accelerate/machine.h>
#include <accelerate/version.h>

#include <fstream>

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/machine/network.h"
#include "base/machine/processors.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

#include <accelerate/error.h>

namespace accelerate {
namespace machine_test {

using testing::expect_error;
using testing::TemporaryDirectory;

// A socket that listens on a port chosen by the system.
class Listener {
 public:
  Listener() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(
        ::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address),
        0);
    EXPECT_EQ(::listen(socket_, 1), 0);
  }
  ~Listener() { ::close(socket_); }
  [[nodiscard]] int port() const { return detail::own_port(socket_); }

 private:
  int socket_;
};

TEST(Ports, AreInUseWhileAProgramListens) {
  const Listener listener;
  EXPECT_TRUE(is_port_in_use(listener.port()));
  expect_error<ConfigError>(
      [] { static_cast<void>(is_port_in_use(0)); }, "1 to 65535");
}

TEST(Ports, AreFoundFree) {
  const Listener listener;
  const int port = get_free_port();
  EXPECT_GT(port, 0);
  EXPECT_LE(port, 65535);
  EXPECT_NE(port, listener.port());
}

TEST(Processors, AreReadAsTheKernelWritesThem) {
  using ::testing::ElementsAre;
  EXPECT_THAT(
      detail::parse_processor_list("0-2,8,10-11\n"),
      ElementsAre(0, 1, 2, 8, 10, 11));
  EXPECT_THAT(detail::parse_processor_list("5"), ElementsAre(5));
  for (const char* text : {"", "a", "3-1", "1-", "-1", "0-99999999999"})
    EXPECT_TRUE(detail::parse_processor_list(text).empty()) << text;
}

// Adds a PCI device to a directory laid out like the kernel's.
void add_device(
    const std::filesystem::path& devices,
    const std::string& address,
    const std::string& vendor,
    const std::string& kind,
    const std::string& processors) {
  const auto directory = devices / address;
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "vendor") << vendor << "\n";
  std::ofstream(directory / "class") << kind << "\n";
  std::ofstream(directory / "local_cpulist") << processors << "\n";
}

TEST(Processors, OfGpusAreThoseOfTheirNode) {
  using ::testing::ElementsAre;
  const TemporaryDirectory devices;
  add_device(devices.path(), "0000:41:00.0", "0x10de", "0x030200", "4-7");
  add_device(devices.path(), "0000:01:00.0", "0x10de", "0x030000", "0-3");
  // An audio function of the same card, and another vendor's display.
  add_device(devices.path(), "0000:01:00.1", "0x10de", "0x040300", "0-3");
  add_device(devices.path(), "0000:00:02.0", "0x1002", "0x030000", "9");
  EXPECT_THAT(
      detail::processors_of_gpu(devices.path(), 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(
      detail::processors_of_gpu(devices.path(), 1), ElementsAre(4, 5, 6, 7));
  EXPECT_TRUE(detail::processors_of_gpu(devices.path(), 2).empty());
  EXPECT_TRUE(detail::processors_of_gpu(devices.path(), -1).empty());
  EXPECT_TRUE(detail::processors_of_gpu(devices / "none", 0).empty());
}

TEST(NumaAffinity, LeavesThreadsAloneWithoutSuchAGpu) {
  cpu_set_t before, after;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_TRUE(set_numa_affinity(1 << 20).empty());
  ASSERT_EQ(::sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(CompareVersions, OrdersAsPythonDoes) {
  // Each version is less than the next.
  const std::vector<std::string> rising{
      "1.dev3",
      "1a1.dev2",
      "1a1",
      "1.0b2",
      "1.0rc1",
      "1.0",
      "1.0+cpu",
      "1.0+cu118",
      "1.0+9",
      "1.0.post1",
      "1.0.1",
      "1.9",
      "1.10",
      "2.0a0",
      "2.0.0",
      "2.11.0a0+git1",
      "1!0.1"};
  for (std::size_t i = 0; i < rising.size(); ++i) {
    for (std::size_t j = 0; j < rising.size(); ++j) {
      EXPECT_EQ(compare_versions(rising[i], "<", rising[j]), i < j)
          << rising[i] << " " << rising[j];
      EXPECT_EQ(compare_versions(rising[i], ">=", rising[j]), i >= j);
      EXPECT_EQ(compare_versions(rising[i], "==", rising[j]), i == j);
      EXPECT_EQ(compare_versions(rising[i], "!=", rising[j]), i != j);
    }
  }
  for (const char* equal : {"2.0", "2", "2.0.0", "v2.0", " 2.0 "})
    EXPECT_TRUE(compare_versions(equal, "==", "2.0.0")) << equal;
  EXPECT_TRUE(compare_versions("1.0-rc.1", "==", "1.0c1"));
  EXPECT_TRUE(compare_versions("1.0-1", "==", "1.0.post1"));
  EXPECT_TRUE(compare_versions("1.0.PreView2", "==", "1.0rc2"));
}

TEST(Version, OfHeadersAndLibraryIsOne) {
  EXPECT_EQ(version(), ACCELERATE_VERSION);
  EXPECT_EQ(
      std::string(ACCELERATE_VERSION),
      std::to_string(ACCELERATE_VERSION_MAJOR) + "." +
          std::to_string(ACCELERATE_VERSION_MINOR) + "." +
          std::to_string(ACCELERATE_VERSION_PATCH));
}

TEST(CompareVersions, RefusesOtherText) {
  for (const char* text :
       {"", "torch", "1.", "1..2", "1.0x", "1.0+", "1.0+a..b"}) {
    expect_error<ConfigError>(
        [&] { static_cast<void>(compare_versions(text, "<", "1")); },
        "a version must be like 2.6");
  }
  expect_error<ConfigError>(
      [] { static_cast<void>(compare_versions("1", "=", "1")); },
      "> >= == != <= <");
}

}  // namespace machine_test
}  // namespace accelerate
