#include "base/machine/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary_directory.h"

namespace accelerate::available_memory_test {

namespace fs = std::filesystem;
using detail::available_memory;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

/// A machine as described by its files under /proc and /sys.
class AvailableMemory : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) const {
    const fs::path path = root() / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  void has_free(std::uint64_t mib) const {
    write(
        "proc/meminfo",
        "MemTotal:       99999999 kB\nMemFree:            1024 kB\n"
        "MemAvailable:   " +
            std::to_string(mib * 1024) + " kB\nBuffers: 0 kB\n");
  }
  void is_in(const std::string& group) const {
    write("proc/self/cgroup", "0::" + group + "\n");
  }
  void limit(
      const std::string& group,
      const std::string& most,
      std::uint64_t used_mib,
      std::uint64_t cached_mib = 0) const {
    const std::string folder = "sys/fs/cgroup" + group;
    write(folder + "/memory.max", most + "\n");
    write(folder + "/memory.current", std::to_string(used_mib * kMiB) + "\n");
    write(
        folder + "/memory.stat",
        "anon 4096\ninactive_file " + std::to_string(cached_mib * kMiB) +
            "\nactive_file 4096\n");
  }
  [[nodiscard]] fs::path root() const { return directory_.path(); }

  testing::TemporaryDirectory directory_;
};

std::string mib(std::uint64_t count) { return std::to_string(count * kMiB); }

TEST_F(AvailableMemory, IsWhatTheMachineHasWithoutAGroup) {
  EXPECT_FALSE(available_memory(root()));
  has_free(1000);
  EXPECT_EQ(available_memory(root()), 1000 * kMiB);
}

TEST_F(AvailableMemory, IsWhatTheGroupLeaves) {
  has_free(1000);
  is_in("/job");
  limit("/job", mib(300), 120);
  EXPECT_EQ(available_memory(root()), 180 * kMiB);
}

TEST_F(AvailableMemory, CountsCachedFilesAsFree) {
  has_free(1000);
  is_in("/job");
  limit("/job", mib(300), 120, 50);
  EXPECT_EQ(available_memory(root()), 230 * kMiB);
  // No more memory than is used can be freed.
  limit("/job", mib(300), 120, 200);
  EXPECT_EQ(available_memory(root()), 300 * kMiB);
}

TEST_F(AvailableMemory, IsTheLeastThatAnyGroupAboveLeaves) {
  has_free(1000);
  is_in("/user.slice/job/step");
  limit("/user.slice/job/step", "max", 10);
  limit("/user.slice/job", mib(500), 100);
  limit("/user.slice", mib(300), 100);
  EXPECT_EQ(available_memory(root()), 200 * kMiB);
}

TEST_F(AvailableMemory, IsNoneInAFullGroup) {
  has_free(1000);
  is_in("/job");
  limit("/job", mib(300), 301);
  EXPECT_EQ(available_memory(root()), 0U);
}

TEST_F(AvailableMemory, IsThatOfTheMachineIfTheGroupHasMore) {
  has_free(100);
  is_in("/job");
  limit("/job", mib(300), 20);
  EXPECT_EQ(available_memory(root()), 100 * kMiB);
}

// In a container, /proc/self/cgroup can name a group that only the host sees;
// the container's own group is at the top.
TEST_F(AvailableMemory, FindsTheLimitOfAContainer) {
  has_free(1000);
  is_in("/docker/0123/of/the/host");
  limit("", mib(400), 150);
  EXPECT_EQ(available_memory(root()), 250 * kMiB);
  is_in("/../../outside");
  EXPECT_EQ(available_memory(root()), 250 * kMiB);
}

TEST_F(AvailableMemory, KnowsGroupsOfVersionOne) {
  has_free(1000);
  write(
      "proc/self/cgroup",
      "12:cpu,cpuacct:/other\n5:hugetlb,memory:/docker/0123\n1:name=systemd:/"
      "\n");
  const std::string top = "sys/fs/cgroup/memory";
  write(top + "/memory.limit_in_bytes", "9223372036854771712\n");
  write(top + "/memory.usage_in_bytes", mib(700) + "\n");
  const std::string own = top + "/docker/0123";
  write(own + "/memory.limit_in_bytes", mib(300) + "\n");
  write(own + "/memory.usage_in_bytes", mib(200) + "\n");
  write(
      own + "/memory.stat",
      "inactive_file 0\ntotal_inactive_file " + mib(30) + "\n");
  EXPECT_EQ(available_memory(root()), 130 * kMiB);
}

TEST(AvailableMemoryOfThisMachine, IsKnown) {
  const auto bytes = available_memory();
  ASSERT_TRUE(bytes);
  EXPECT_GT(*bytes, kMiB);
}

}  // namespace accelerate::available_memory_test
