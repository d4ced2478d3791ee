#include "trackers/system/system_figures.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/machine/proc_text.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace system_figures_test {

TEST(ProcText, CountsTicks) {
  EXPECT_EQ(
      cpu_ticks("cpu  100 20 30 400 50 6 7 8 90 1\n"
                "cpu0 1 1 1 1 1 1 1 1 1 1\nintr 1\n"),
      (CpuTicks{.busy = 171, .all = 621}));
  EXPECT_EQ(cpu_ticks("cpu 1 2 3 4"), (CpuTicks{.busy = 6, .all = 10}));
  for (const char* text :
       {"", "cpu", "cpu 1 2 3", "cpu0 1 2 3 4", "cpu 1 2 x 4", "cpu 1 -2 3 4"})
    EXPECT_EQ(cpu_ticks(text), std::nullopt) << text;
  const std::string most = "18446744073709551615";
  EXPECT_EQ(
      cpu_ticks("cpu " + most + " " + most + " 1 1")->all,
      18446744073709551615U);
}

TEST(ProcText, ReadsMemory) {
  const std::string_view text =
      "MemTotal:       16000000 kB\nMemFree:  1 kB\n"
      "MemAvailable:   10000000 kB\nHugePages_Total:       7\nOdd: x kB\n";
  EXPECT_EQ(meminfo_bytes(text, "MemTotal"), 16000000ULL * 1024);
  EXPECT_EQ(meminfo_bytes(text, "HugePages_Total"), 7U);
  EXPECT_EQ(meminfo_bytes(text, "Mem"), std::nullopt);
  EXPECT_EQ(meminfo_bytes(text, "Odd"), std::nullopt);
  EXPECT_EQ(resident_pages("5000 1234 600 1 0 700 0\n"), 1234U);
  EXPECT_EQ(resident_pages("5000"), std::nullopt);
  EXPECT_EQ(keyed_number("anon 5\ninactive_file 77\n", "inactive_file"), 77U);
  EXPECT_EQ(lone_number("max\n"), std::nullopt);
  EXPECT_EQ(lone_number("123\n"), 123U);
}

TEST(ProcText, CountsDisksOnce) {
  EXPECT_EQ(
      disk_bytes("   8       0 sda 10 0 100 5 20 0 200 6 0 7 8\n"
                 "   8       1 sda1 10 0 100 5 20 0 200 6 0 7 8\n"
                 " 259       0 nvme0n1 1 0 1000 1 1 0 2000 1 0 1 1\n"
                 " 259       1 nvme0n1p1 1 0 1000 1 1 0 2000 1 0 1 1\n"
                 " 179       0 mmcblk0 1 0 1 1 1 0 2 1 0 1 1\n"
                 " 253       0 dm-0 1 0 1000 1 1 0 2000 1 0 1 1\n"
                 "   7       0 loop0 1 0 1000 1 1 0 2000 1 0 1 1\n"
                 " 252       0 vda 1 0 x 1 1 0 2000 1 0 1 1\nshort sdb\n"),
      (ByteCounts{.in = 1101 * 512, .out = 2202 * 512}));
}

TEST(ProcText, CountsTheNetworkWithoutLoopback) {
  EXPECT_EQ(
      network_bytes(
          "Inter-|   Receive                            |  Transmit\n"
          " face |bytes    packets errs drop fifo frame compressed multicast|"
          "bytes    packets errs drop fifo colls carrier compressed\n"
          "    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n"
          "  eth0:1000 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
          " wlan0: 30 1 0 0 0 0 0 0 4 1 0 0 0 0 0 0\n"),
      (ByteCounts{.in = 1030, .out = 204}));
}

TEST(ProcText, FindsTheControlGroup) {
  EXPECT_EQ(cgroup_path("12:cpu:/x\n0::/user.slice/a\n"), "user.slice/a");
  EXPECT_EQ(cgroup_path("0::/\n"), "");
  EXPECT_EQ(cgroup_path("0::/../../etc\n"), std::nullopt);
  EXPECT_EQ(cgroup_path("12:cpu:/x\n"), std::nullopt);
}

RC_GTEST_PROP(ProcText, TakesAnyBytes, (const std::string& text)) {
  (void)cpu_ticks(text);
  (void)resident_pages(text);
  (void)meminfo_bytes(text, "MemTotal");
  (void)disk_bytes(text);
  (void)network_bytes(text);
  (void)cgroup_path(text);
  (void)lone_number(text);
  (void)keyed_number(text, "a");
}

// A machine described by files.
class Machine {
 public:
  void write(const std::string& path, const std::string& text) {
    const auto file = directory_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  [[nodiscard]] SystemReader reader() const {
    return SystemReader(directory_.path());
  }

 private:
  testing::TemporaryDirectory directory_;
};

std::map<std::string, double> figures_of(SystemReader& reader) {
  std::map<std::string, double> figures;
  for (const auto& [name, value] : reader.figures()) figures[name] = value;
  return figures;
}

TEST(SystemReader, SaysWhatChangedSinceItWasMade) {
  Machine machine;
  machine.write("proc/stat", "cpu 100 0 0 300\n");
  machine.write("proc/diskstats", "8 0 sda 1 0 1000 1 1 0 2000 1\n");
  machine.write("proc/net/dev", "eth0: 500 1 0 0 0 0 0 0 900 1\n");
  SystemReader reader = machine.reader();
  machine.write("proc/stat", "cpu 125 0 0 375\n");
  machine.write("proc/self/statm", "9 1000 1\n");
  machine.write(
      "proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n");
  machine.write("proc/diskstats", "8 0 sda 1 0 5000 1 1 0 2000 1\n");
  machine.write("proc/net/dev", "eth0: 1500500 1 0 0 0 0 0 0 100 1\n");
  const double page = static_cast<double>(::sysconf(_SC_PAGESIZE));
  EXPECT_EQ(
      figures_of(reader),
      (std::map<std::string, double>{
          {"cpu_percent", 25.0},
          {"process_mb", std::round(page) / 1000},
          {"machine_mb", 1024.0},
          {"disk_read_mb", 2.048},
          {"disk_write_mb", 0.0},
          {"network_in_mb", 1.5},
          {"network_out_mb", 0.0}}));
}

TEST(SystemReader, SaysWhatTheContainerUses) {
  Machine machine;
  machine.write(
      "proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n");
  machine.write("proc/self/cgroup", "0::/job\n");
  machine.write("sys/fs/cgroup/job/memory.max", "1000000000\n");
  machine.write("sys/fs/cgroup/job/memory.current", "700000000\n");
  machine.write("sys/fs/cgroup/job/memory.stat", "inactive_file 200000000\n");
  const auto used = [&] {
    SystemReader reader = machine.reader();
    return figures_of(reader).at("machine_mb");
  };
  EXPECT_EQ(used(), 500.0);
  machine.write("sys/fs/cgroup/job/memory.max", "max\n");
  EXPECT_EQ(used(), 1024.0);
}

TEST(SystemReader, LeavesOutWhatItCannotRead) {
  Machine machine;
  SystemReader reader = machine.reader();
  EXPECT_EQ(
      figures_of(reader),
      (std::map<std::string, double>{
          {"disk_read_mb", 0},
          {"disk_write_mb", 0},
          {"network_in_mb", 0},
          {"network_out_mb", 0}}));
  EXPECT_EQ(reader.process_mb(), std::nullopt);
}

}  // namespace system_figures_test
}  // namespace accelerate::detail
