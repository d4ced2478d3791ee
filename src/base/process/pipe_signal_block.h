#pragma once

#include <csignal>

namespace accelerate::detail {

/// Blocks SIGPIPE for the calling thread while it lives, so that writing to a
/// connection whose other end is gone fails with EPIPE instead of ending the
/// process. Threads started meanwhile keep it blocked. For third-party code;
/// our own code passes MSG_NOSIGNAL.
class PipeSignalBlock {
 public:
  PipeSignalBlock();
  PipeSignalBlock(const PipeSignalBlock&) = delete;
  PipeSignalBlock& operator=(const PipeSignalBlock&) = delete;
  /// Discards a SIGPIPE that arrived meanwhile. Must run on the same thread.
  ~PipeSignalBlock();

 private:
  // Whether it was already blocked, so that there is nothing to restore.
  bool was_blocked_ = false;
};

}  // namespace accelerate::detail
