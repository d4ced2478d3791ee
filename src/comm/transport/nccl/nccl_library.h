#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace accelerate::detail {

/// A failure that NCCL reports.
struct NcclError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What the ranks of a communicator agree on before it is made.
struct NcclUniqueId {
  char bytes[128];
};

/// ncclConfig_t as NCCL 2.18 has it; later versions read its size.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;

  static constexpr int kUndefined = -2147483647 - 1;
};

/// NCCL's functions, found at run time, so that nothing is linked. Handles of
/// communicators and streams are opaque. Never unloaded, since the library has
/// threads. Thread-safe.
class NcclLibrary {
 public:
  using Communicator = void*;

  /// Opens `path`, or, if unset, the library that LibTorch uses. Throws
  /// ConfigError, saying where it looked, if it cannot be opened, lacks a
  /// function, or is older than 2.18, the first with all of them. `variables`
  /// are those that NCCL reads from the environment, for errors.
  static std::shared_ptr<const NcclLibrary> open(
      const std::optional<std::string>& path,
      std::string variables = {});

  /// The number that NCCL gives itself, such as 22809.
  [[nodiscard]] int version() const { return version_; }
  /// The version as people write it, such as "2.28.9".
  [[nodiscard]] std::string version_text() const;

  /// Throws NcclError unless `code` is success or, with a communicator that
  /// does not block, in progress.
  void check(int code, const char* what) const;

  // Result codes of functions.
  static constexpr int kSuccess = 0;
  static constexpr int kInProgress = 7;

  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclUniqueId* id) = nullptr;
  int (*init)(
      Communicator* communicator,
      int size,
      NcclUniqueId id,
      int rank,
      NcclConfig* config) = nullptr;
  /// Ends issued operations; destroy() may follow once get_async_error()
  /// reports that they have ended.
  int (*finalize)(Communicator) = nullptr;
  int (*destroy)(Communicator) = nullptr;
  int (*abort)(Communicator) = nullptr;
  int (*get_async_error)(Communicator, int* code) = nullptr;
  const char* (*error_text)(int code) = nullptr;
  const char* (*last_error)(Communicator) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(
      const void* input,
      void* output,
      std::size_t count,
      int dtype,
      int op,
      Communicator,
      void* stream) = nullptr;
  int (*reduce)(
      const void* input,
      void* output,
      std::size_t count,
      int dtype,
      int op,
      int root,
      Communicator,
      void* stream) = nullptr;
  int (*broadcast)(
      const void* input,
      void* output,
      std::size_t count,
      int dtype,
      int root,
      Communicator,
      void* stream) = nullptr;
  int (*all_gather)(
      const void* input,
      void* output,
      std::size_t count,
      int dtype,
      Communicator,
      void* stream) = nullptr;
  int (*reduce_scatter)(
      const void* input,
      void* output,
      std::size_t count,
      int dtype,
      int op,
      Communicator,
      void* stream) = nullptr;
  int (*send)(
      const void* input,
      std::size_t count,
      int dtype,
      int peer,
      Communicator,
      void* stream) = nullptr;
  int (*receive)(
      void* output,
      std::size_t count,
      int dtype,
      int peer,
      Communicator,
      void* stream) = nullptr;

 private:
  NcclLibrary(const std::optional<std::string>& path, std::string variables);

  std::string variables_;
  int version_ = 0;
};

}  // namespace accelerate::detail
