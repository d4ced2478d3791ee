#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Turns a placeholder (gate/watched_tensor.h) into `value`: it takes over its
/// memory, version and place in the graph. The program holds the placeholder,
/// so it cannot be replaced.
void become(const at::Tensor& placeholder, at::Tensor value);

/// While alive, is notified when placeholders on this thread become tensors;
/// only the innermost one is. Must be destroyed on the thread that made it, the
/// innermost first.
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
