#include "comm/transport/nccl/nccl_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include <ATen/ops/empty.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr const char* kName = "libnccl.so.2";
// The first version with ncclCommInitRankConfig's fields as in NcclConfig.
constexpr int kOldestVersion = 21800;

// Beside the wheel of torch, pip installs "nvidia/nccl/lib".
std::string path_beside_torch() {
  Dl_info info{};
  if (::dladdr(
          reinterpret_cast<void*>(&at::_ops::empty_memory_format::call),
          &info) == 0 ||
      info.dli_fname == nullptr) {
    return {};
  }
  const std::filesystem::path packages =
      std::filesystem::path(info.dli_fname).parent_path() / ".." / "..";
  return (packages / "nvidia" / "nccl" / "lib" / kName).string();
}

void* open_library(const std::optional<std::string>& path) {
  const std::vector<std::string> candidates = path
      ? std::vector{*path}
      : std::vector<std::string>{kName, path_beside_torch()};
  std::vector<std::string> failures;
  for (const std::string& candidate : candidates) {
    if (candidate.empty()) continue;
    if (void* const library = ::dlopen(candidate.c_str(), RTLD_NOW))
      return library;
    const char* const reason = ::dlerror();
    failures.push_back(
        format("\"{}\" ({})", candidate, reason != nullptr ? reason : "?"));
  }
  throw ConfigError(format(
      "[comm] NCCL could not be opened; tried {}; install it, or set "
      "ACCELERATE_NCCL_LIBRARY to its path",
      join(failures, ", ")));
}

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function != nullptr) return;
  throw ConfigError(format(
      "[comm] NCCL lacks the function \"{}\": version 2.18 or newer is needed",
      name));
}

std::string text_of(int version) {
  return format(
      "{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

NcclLibrary::NcclLibrary(const std::optional<std::string>& path) {
  void* const library = open_library(path);
  find(library, "ncclGetVersion", get_version);
  check(get_version(&version_), "ncclGetVersion");
  if (version_ < kOldestVersion) {
    throw ConfigError(format(
        "[comm] NCCL must have version {} or newer, but has {}",
        text_of(kOldestVersion),
        text_of(version_)));
  }
  find(library, "ncclGetUniqueId", get_unique_id);
  find(library, "ncclCommInitRankConfig", init);
  find(library, "ncclCommFinalize", finalize);
  find(library, "ncclCommDestroy", destroy);
  find(library, "ncclCommAbort", abort);
  find(library, "ncclCommGetAsyncError", get_async_error);
  find(library, "ncclGetErrorString", error_text);
  find(library, "ncclGetLastError", last_error);
  find(library, "ncclGroupStart", group_start);
  find(library, "ncclGroupEnd", group_end);
  find(library, "ncclAllReduce", all_reduce);
  find(library, "ncclReduce", reduce);
  find(library, "ncclBroadcast", broadcast);
  find(library, "ncclAllGather", all_gather);
  find(library, "ncclReduceScatter", reduce_scatter);
  find(library, "ncclSend", send);
  find(library, "ncclRecv", receive);
}

std::shared_ptr<const NcclLibrary> NcclLibrary::open(
    const std::optional<std::string>& path) {
  return std::shared_ptr<const NcclLibrary>(new NcclLibrary(path));
}

std::string NcclLibrary::version_text() const { return text_of(version_); }

void NcclLibrary::check(int code, const char* what) const {
  if (code == kSuccess || code == kInProgress) return;
  const char* const text = error_text != nullptr ? error_text(code) : nullptr;
  const char* const detail = last_error != nullptr ? last_error(nullptr) : "";
  throw NcclError(format(
      "NCCL's {} failed with code {}: {}{}{}",
      what,
      code,
      text != nullptr ? text : "unknown",
      detail != nullptr && *detail != '\0' ? "; " : "",
      detail != nullptr ? detail : ""));
}

}  // namespace accelerate::detail
