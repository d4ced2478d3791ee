#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// Number of processors that this process may keep busy: those in its affinity
/// mask, or fewer if its control group, or an ancestor, has a smaller share of
/// processor time; at least 1. `root` is where /proc and /sys are.
int usable_processors(const std::filesystem::path& root = "/");

/// The processors near a GPU, from the kernel's directory of PCI devices; see
/// set_numa_affinity(). Empty if there is no GPU with this number.
std::vector<int> processors_of_gpu(
    const std::filesystem::path& pci_devices,
    int number);

/// The numbers in a list as the kernel writes it: "0-3,8" is 0, 1, 2, 3, 8.
/// Empty for any other text.
std::vector<int> parse_processor_list(std::string_view text);

}  // namespace accelerate::detail
