#pragma once

#include <string_view>
#include <vector>

#include <accelerate/export.h>

/// This machine: its ports, processors, and the versions of programs.
namespace accelerate {

/// Whether a program on this machine listens on a TCP port of its own address
/// ("localhost"). Throws ConfigError for a number that is not a port.
[[nodiscard]] ACCELERATE_API bool is_port_in_use(int port = 29500);

/// Returns a TCP port on which no program listens. Another program may take it
/// before this one does; let the system choose if you can (port 0). Throws
/// Error if the system has none.
[[nodiscard]] ACCELERATE_API int get_free_port();

/// Restricts the calling thread, and threads that it starts from now on, to the
/// processors of the NUMA node of the GPU with this index. GPUs are counted as
/// by the driver, in the order of their PCI addresses: NVIDIA's if there are
/// any, else AMD's, including those that CUDA_VISIBLE_DEVICES hides. Call it
/// first in each rank, with its local rank. Returns the processors; an empty
/// list, with nothing changed, if the machine has no such GPU or does not
/// report where it is. Throws Error if the system refuses. `accelerate-cpp
/// launch --cpu_affinity auto` does the same for its ranks, each of which it
/// binds near the GPU that it sees.
ACCELERATE_API std::vector<int> set_numa_affinity(int local_process_index);

/// Compares two version numbers as Python does (PEP 440): "2.10" is above
/// "2.9", "2.0rc1" and "2.0.dev3" are below "2.0", "2.0.post1" and "2.0+cpu"
/// above it. `operation` is one of > >= == != <= <. For LibTorch, whose version
/// is TORCH_VERSION (torch/version.h): compare_versions(TORCH_VERSION, ">=",
/// "2.6"). Throws ConfigError for other operations and for invalid versions.
[[nodiscard]] ACCELERATE_API bool compare_versions(
    std::string_view version,
    std::string_view operation,
    std::string_view other);

}  // namespace accelerate
