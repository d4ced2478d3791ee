#include "base/machine/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary_directory.h"

namespace accelerate::processors_test {

namespace fs = std::filesystem;
using detail::usable_processors;

/// A machine as described by its control group files; the affinity is that of
/// the test process.
class Processors : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) const {
    const fs::path path = root() / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  [[nodiscard]] fs::path root() const { return directory_.path(); }
  static int affinity() {
    cpu_set_t set;
    CPU_ZERO(&set);
    return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(Processors, AreThoseOfTheAffinityWithoutAQuota) {
  EXPECT_EQ(usable_processors(root()), affinity());
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(usable_processors(root()), affinity());
  write("sys/fs/cgroup/job/cpu.max", "100000000 100000\n");
  EXPECT_EQ(usable_processors(root()), affinity());
}

TEST_F(Processors, AreFewerWhereAnyGroupAroundHasAQuota) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(usable_processors(root()), 1);
  write("sys/fs/cgroup/job/cpu.max", "20000 100000\n");
  EXPECT_EQ(usable_processors(root()), 1);
}

TEST_F(Processors, AreFewerInsideAContainer) {
  // The container sees its own group at the top.
  write("proc/self/cgroup", "0::/../somewhere/else\n");
  write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(usable_processors(root()), 1);
}

TEST_F(Processors, ObeyVersionOneOfControlGroups) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/job\n3:memory:/other\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable_processors(root()), 1);
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(usable_processors(root()), affinity());
}

}  // namespace accelerate::processors_test
