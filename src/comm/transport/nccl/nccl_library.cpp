#include "comm/transport/nccl/nccl_library.h"

#include <dlfcn.h>

#include <utility>

#include <ATen/ops/empty.h>

#include <accelerate/error.h>

#include "base/machine/nccl_file.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// The first with ncclCommInitRankConfig's fields as NcclConfig has them.
constexpr int kOldestVersion = 21800;

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function != nullptr) return;
  throw ConfigError(format(
      "[comm] NCCL lacks the function \"{}\": version 2.18 or newer is needed",
      name));
}

}  // namespace

NcclLibrary::NcclLibrary(
    const std::optional<std::string>& path,
    std::string variables)
    : variables_(std::move(variables)) {
  // A function of LibTorch, to know where its library is.
  const NcclFile file = open_nccl(
      path,
      reinterpret_cast<const void*>(&at::_ops::empty_memory_format::call));
  void* const library = file.handle;
  if (library == nullptr) throw ConfigError(format("[comm] {}", file.problem));
  find(library, "ncclGetVersion", get_version);
  check(get_version(&version_), "ncclGetVersion");
  if (version_ < kOldestVersion) {
    throw ConfigError(format(
        "[comm] NCCL must be of version {} or newer, but is {}",
        nccl_version_text(kOldestVersion),
        nccl_version_text(version_)));
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
    const std::optional<std::string>& path,
    std::string variables) {
  return std::shared_ptr<const NcclLibrary>(
      new NcclLibrary(path, std::move(variables)));
}

std::string NcclLibrary::version_text() const {
  return nccl_version_text(version_);
}

void NcclLibrary::check(int code, const char* what) const {
  if (code == kSuccess || code == kInProgress) return;
  const char* const text = error_text != nullptr ? error_text(code) : nullptr;
  const char* const detail = last_error != nullptr ? last_error(nullptr) : "";
  throw NcclError(format(
      "NCCL's {} failed with code {}: {}{}{}{}",
      what,
      code,
      text != nullptr ? text : "unknown",
      detail != nullptr && *detail != '\0' ? "; " : "",
      detail != nullptr ? detail : "",
      variables_.empty() ? variables_
                         : format("; its variables are {}", variables_)));
}

}  // namespace accelerate::detail
