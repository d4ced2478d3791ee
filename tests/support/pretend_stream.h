#pragma once

namespace accelerate::testing {

/// The native handle of a pretend device's stream, for libraries that do not
/// know LibTorch.
struct PretendStream {
  /// Queues `work(argument)`, which runs when something waits for it.
  void (*enqueue)(
      const PretendStream* stream,
      void (*work)(void* argument),
      void* argument) = nullptr;
  /// Runs what is queued now. Any thread may call it.
  void (*run)(const PretendStream* stream) = nullptr;
  int device = 0;
  long id = 0;
};

}  // namespace accelerate::testing
