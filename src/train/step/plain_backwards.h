#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "train/session/window.h"

namespace accelerate::detail {

struct PreparedModel;

/// While alive, backwards are those of Accelerator::backward() or of a
/// pipeline, which notify strategies themselves.
class OwnBackward {
 public:
  explicit OwnBackward(StepWindow& window)
      : window_(window), before_(std::exchange(window.is_in_backward, true)) {}
  ~OwnBackward() { window_.is_in_backward = before_; }
  OwnBackward(const OwnBackward&) = delete;
  OwnBackward& operator=(const OwnBackward&) = delete;

 private:
  StepWindow& window_;
  bool before_;
};

/// Notices the plain backwards of one model, those that the program runs itself
/// (`loss.backward()`), and notifies its strategies, which average gradients at
/// the end. A plain backward begins with the first gradient of a parameter, or
/// earlier if a strategy says so, and ends with its graph. (A strategy may also
/// notice torch::autograd::grad(), which leaves no gradients.)
class PlainBackwards {
 public:
  /// `calls`: what else strategies may call.
  PlainBackwards(PreparedModel& model, ModelCalls calls);
  ~PlainBackwards();
  PlainBackwards(const PlainBackwards&) = delete;
  PlainBackwards& operator=(const PlainBackwards&) = delete;

  /// Called outside of backwards: watches the parameters that are trained now.
  /// Returns whether a plain backward may have passed unnoticed: it reached
  /// none of those that were trained at the last call, or it failed.
  bool watch();

 private:
  class Hook;
  /// A parameter's gradient accumulator, which LibTorch replaces if the dtype or
  /// the device changes. The tensor's own hook stays, and notices it.
  struct Watched {
    const void* tensor = nullptr;
    std::function<void()> unhook_tensor = nullptr;
    const void* accumulator = nullptr;
    std::function<void()> unhook = nullptr;

    void end() const;
  };

  /// Returns whether a parameter with a gradient has another accumulator than
  /// at the last call.
  bool hook_accumulators();
  void hook_tensor(std::size_t row);
  /// Called before the gradient of the row's tensor is accumulated.
  void before_gradient(std::size_t row);
  void on_gradient();
  void begin();
  void end();
  void count() const;

  PreparedModel& model_;
  std::vector<Watched> watched_;  ///< by row
  std::mutex hooks_mutex_;
  bool is_first_watch_ = true;
  // Gradients are computed by other threads if there is an accelerator.
  std::mutex mutex_;
  /// LibTorch's number of the backward that runs, or ran last.
  int graph_ = -1;
  bool is_open_ = false;
  /// True if it has computed a gradient.
  bool is_reached_ = false;
  bool sync_gradients_ = false;
};

}  // namespace accelerate::detail
