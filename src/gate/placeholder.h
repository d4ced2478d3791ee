#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Makes a placeholder (gate/watched_tensor.h) the same tensor as `value`: its
/// memory, version and place in the graph. The program holds the placeholder,
/// so it cannot be replaced.
void become(const at::Tensor& placeholder, at::Tensor value);

/// While alive, is told what placeholders become on this thread; the innermost
/// only. Must be destroyed on the thread that made it, the innermost first.
class PlaceholderListener {
 public:
  PlaceholderListener();
  virtual ~PlaceholderListener();
  PlaceholderListener(const PlaceholderListener&) = delete;
  PlaceholderListener& operator=(const PlaceholderListener&) = delete;

  virtual void became(
      const at::Tensor& placeholder,
      const at::Tensor& value) = 0;

 private:
  PlaceholderListener* enclosing_;
};

}  // namespace accelerate::detail
