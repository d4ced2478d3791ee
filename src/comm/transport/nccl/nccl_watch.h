#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/transport/nccl/nccl_communicator.h"
#include "comm/transport/nccl/nccl_work.h"

namespace accelerate::detail {

/// Looks after operations that nobody waits for on the host: ends groups whose
/// operations take too long, saying which ranks have not begun them, that NCCL
/// reports broken, or that another rank has ended; frees the memory of finished
/// ones. Its thread lives while operations run. Thread-safe.
class NcclWatch {
 public:
  NcclWatch() = default;
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  void add(
      const std::string& name,
      const std::shared_ptr<NcclCommunicator>& communicator,
      std::shared_ptr<NcclOperation> operation);

 private:
  struct Watched {
    std::string name;
    std::shared_ptr<NcclCommunicator> communicator;
    std::shared_ptr<NcclOperation> operation;
    std::chrono::steady_clock::time_point begun;
    /// When the other ranks are looked for.
    std::chrono::steady_clock::time_point next_look;
    bool has_warned = false;
  };

  void run();
  /// Why the operation, the first of its group, will not end.
  static std::optional<std::string> failure_of(Watched& watched);
  /// Removes operations that have ended or failed.
  static void look_at(std::list<Watched>& all);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Watched> watched_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace accelerate::detail
