#pragma once

#include <optional>
#include <string>

namespace accelerate::detail {

/// NCCL's library, opened while the program runs. It has threads, so it is
/// never closed.
struct NcclFile {
  /// Null if it cannot be opened.
  void* handle = nullptr;
  /// Where it was looked for and why that failed; empty if it is open.
  std::string problem = {};
};

/// Opens NCCL as `given` if set, else where the system's loader finds it, else
/// where pip installs it: beside the wheel of LibTorch, one of whose functions
/// is at `in_libtorch` (null: not there).
NcclFile open_nccl(
    const std::optional<std::string>& given,
    const void* in_libtorch);

/// NCCL's number of its version as people write it: 22809 is "2.28.9".
std::string nccl_version_text(int version);

}  // namespace accelerate::detail
