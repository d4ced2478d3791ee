#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/machine/gpu_links.h"
#include "base/machine/gpus.h"
#include "base/machine/nccl_file.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace gpus_test {

using detail::Gpu;
using detail::nvidia_gpus;
using detail::visible_gpus;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::TemporaryDirectory;

/// A file system with the kernel's and the driver's files of GPUs.
class PlantedGpus : public ::testing::Test {
 protected:
  void plant(
      const std::string& address,
      const std::string& uuid,
      const std::string& processors) {
    const auto driver = root_.path() / "proc/driver/nvidia/gpus" / address;
    const auto device = root_.path() / "sys/bus/pci/devices" / address;
    std::filesystem::create_directories(driver);
    std::filesystem::create_directories(device);
    std::ofstream(driver / "information")
        << "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t "
        << uuid << "\nBus Location: \t " << address << "\n";
    std::ofstream(device / "local_cpulist") << processors << "\n";
  }

  [[nodiscard]] std::vector<std::string> seen(
      const std::optional<std::string>& visible) const {
    std::vector<std::string> addresses;
    for (const Gpu& gpu : visible_gpus(nvidia_gpus(root_.path()), visible))
      addresses.push_back(gpu.address);
    return addresses;
  }

  TemporaryDirectory root_;
};

TEST_F(PlantedGpus, AreInTheOrderOfTheirAddressesWithTheirProcessors) {
  EXPECT_THAT(nvidia_gpus(root_.path()), IsEmpty());
  plant("0000:c1:00.0", "GPU-cc", "4-7");
  plant("0000:3b:00.0", "GPU-3b", "0-3");
  const std::vector<Gpu> gpus = nvidia_gpus(root_.path());
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].address, "0000:3b:00.0");
  EXPECT_EQ(gpus[0].uuid, "GPU-3b");
  EXPECT_EQ(gpus[0].model, "NVIDIA H100 80GB HBM3");
  EXPECT_THAT(gpus[0].processors, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(gpus[1].processors, ElementsAre(4, 5, 6, 7));
}

TEST_F(PlantedGpus, OfAProcessAreThoseThatItsVariableNames) {
  plant("0000:01:00.0", "GPU-aa11", "0");
  plant("0000:02:00.0", "GPU-bb22", "1");
  plant("0000:03:00.0", "GPU-bb33", "2");
  const std::string first = "0000:01:00.0", second = "0000:02:00.0",
                    third = "0000:03:00.0";
  EXPECT_THAT(seen(std::nullopt), ElementsAre(first, second, third));
  EXPECT_THAT(seen("2,0"), ElementsAre(third, first));
  EXPECT_THAT(seen("GPU-bb3, GPU-aa11"), ElementsAre(third, first));
  EXPECT_THAT(seen(""), IsEmpty());
  EXPECT_THAT(seen("-1"), IsEmpty());
  // CUDA stops at the first that is invalid.
  EXPECT_THAT(seen("1,7,0"), ElementsAre(second));
  EXPECT_THAT(seen("0,GPU-cc,1"), ElementsAre(first));
  EXPECT_THAT(seen("MIG-1,MIG-2"), ElementsAre(""));
}

TEST_F(PlantedGpus, CountByUuidIfTheDriverTellsNone) {
  plant("0000:01:00.0", "GPU-" + std::string(8, '?'), "0");
  EXPECT_EQ(nvidia_gpus(root_.path())[0].uuid, "");
  EXPECT_THAT(seen("GPU-aa"), ElementsAre(""));
}

// A driver with four GPUs: 0 and 1 by NVLink, 2 by a switch of theirs, 3 at
// another processor, which 0 to 2 cannot reach.
detail::NvmlLinkFunctions pretend_nvml() {
  static int devices[4];
  static const auto number = [](void* device) {
    return static_cast<int>(static_cast<int*>(device) - devices);
  };
  detail::NvmlLinkFunctions nvml;
  nvml.init = [] { return 0; };
  nvml.shutdown = [] { return 0; };
  nvml.count = [](unsigned* count) {
    *count = 4;
    return 0;
  };
  nvml.device = [](unsigned index, void** device) {
    *device = &devices[index];
    return 0;
  };
  nvml.nvlink_state = [](void* device, unsigned link, int* is_active) {
    *is_active = number(device) < 2 && link < 4 ? 1 : 0;
    return 0;
  };
  nvml.common_ancestor = [](void* a, void* b, int* level) {
    *level = std::max(number(a), number(b)) == 3 ? 50 : 10;
    return 0;
  };
  nvml.peer_status = [](void* a, void* b, int capability, int* status) {
    const int last = std::max(number(a), number(b));
    const bool has = capability == 2 ? last == 1 : last < 3;
    *status = has ? 0 : 1;
    return 0;
  };
  nvml.pcie_generation = [](void*, unsigned* generation) {
    *generation = 5;
    return 0;
  };
  nvml.pcie_lanes = [](void*, unsigned* lanes) {
    *lanes = 16;
    return 0;
  };
  return nvml;
}

TEST(GpuLinks, AreThoseThatTheDriverReports) {
  const auto links = detail::read_gpu_links(pretend_nvml());
  ASSERT_TRUE(links);
  EXPECT_THAT(
      detail::describe_gpu_links(*links),
      ElementsAre(
          Pair(
              "Connections of GPUs",
              "0 to 1: 4 NVLinks, PCIe 5 x16; 2 to 3: no NVLink, PCIe 5 x16"),
          Pair(
              "Links between GPUs",
              "0-1: NVLink; 0-2 1-2: PCIe, by a switch; 0-3 1-3 2-3: PCIe, "
              "across processors"),
          Pair(
              "GPUs as peers",
              "0-3 1-3 2-3: cannot reach each other, NCCL goes through host "
              "memory")));
}

TEST(GpuLinks, AreUnknownToOldDrivers) {
  detail::NvmlLinkFunctions nvml = pretend_nvml();
  nvml.nvlink_state = nullptr;
  nvml.common_ancestor = nullptr;
  nvml.peer_status = nullptr;
  nvml.pcie_lanes = nullptr;
  EXPECT_THAT(
      detail::describe_gpu_links(*detail::read_gpu_links(nvml)),
      ElementsAre(
          Pair("Connections of GPUs", "0 to 3: no NVLink"),
          Pair("Links between GPUs", "all: unknown"),
          Pair("GPUs as peers", "all: unknown")));
  nvml.init = [] { return 9; };
  EXPECT_FALSE(detail::read_gpu_links(nvml));
}

TEST(GpuLinks, OfAllAreNamedOnce) {
  using detail::GpuPath;
  EXPECT_THAT(
      detail::describe_gpu_links(
          {.gpus = {{18, 5, 16}, {18, 5, 16}},
           .pairs = {{0, 1, GpuPath::nvlink, true}}}),
      ElementsAre(
          Pair("Connections of GPUs", "0 to 1: 18 NVLinks, PCIe 5 x16"),
          Pair("Links between GPUs", "all: NVLink"),
          Pair("GPUs as peers", "each reaches all others")));
  EXPECT_THAT(
      detail::describe_gpu_links({.gpus = {{0, 4, 8}}}),
      ElementsAre(Pair("Connections of GPUs", "0: no NVLink, PCIe 4 x8")));
}

TEST(NcclFile, NamesThePlacesWhereItIsNot) {
  const detail::NcclFile file =
      detail::open_nccl("/nowhere/libnccl.so", nullptr);
  EXPECT_EQ(file.handle, nullptr);
  EXPECT_THAT(
      file.problem,
      ::testing::AllOf(
          ::testing::StartsWith("NCCL could not be opened; it was looked for "
                                "as \"/nowhere/libnccl.so\" ("),
          ::testing::EndsWith(
              "install it, or set ACCELERATE_NCCL_LIBRARY to its path")));
  EXPECT_THAT(
      detail::nvidia_facts(file, std::nullopt),
      ElementsAre(Pair(
          "NCCL and NVIDIA's driver",
          "none: libnvidia-ml.so.1 is not here; " + file.problem)));
  EXPECT_THAT(
      detail::nvidia_facts(file, pretend_nvml()),
      ElementsAre(
          Pair("NCCL", file.problem),
          Pair("Connections of GPUs", ::testing::_),
          Pair("Links between GPUs", ::testing::_),
          Pair("GPUs as peers", ::testing::_)));
  EXPECT_EQ(detail::nccl_version_text(22809), "2.28.9");
}

}  // namespace gpus_test
}  // namespace accelerate
