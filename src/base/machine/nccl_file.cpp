#include "base/machine/nccl_file.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr const char* kNcclName = "libnccl.so.2";

// Beside the wheel of torch, pip installs "nvidia/nccl/lib".
std::string nccl_beside(const void* in_libtorch) {
  Dl_info info{};
  if (in_libtorch == nullptr || ::dladdr(in_libtorch, &info) == 0 ||
      info.dli_fname == nullptr)
    return {};
  const std::filesystem::path packages =
      std::filesystem::path(info.dli_fname).parent_path() / ".." / "..";
  return (packages / "nvidia" / "nccl" / "lib" / kNcclName).string();
}

}  // namespace

NcclFile open_nccl(
    const std::optional<std::string>& given,
    const void* in_libtorch) {
  const std::vector<std::string> candidates = given
      ? std::vector{*given}
      : std::vector<std::string>{kNcclName, nccl_beside(in_libtorch)};
  std::vector<std::string> failures;
  for (const std::string& candidate : candidates) {
    if (candidate.empty()) continue;
    if (void* const handle = ::dlopen(candidate.c_str(), RTLD_NOW))
      return {.handle = handle};
    const char* const reason = ::dlerror();
    failures.push_back(
        format("\"{}\" ({})", candidate, reason != nullptr ? reason : "?"));
  }
  return {
      .problem = format(
          "NCCL could not be opened; it was looked for as {}; install it, or "
          "set ACCELERATE_NCCL_LIBRARY to its path",
          join(failures, ", "))};
}

std::string nccl_version_text(int version) {
  return format(
      "{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace accelerate::detail
