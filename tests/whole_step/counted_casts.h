#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

namespace accelerate::testing {

/// Counts, while it lives, this thread's casts by the number of elements and
/// the dtype that is cast from.
class CountedCasts {
 public:
  using Key = std::pair<std::int64_t, at::ScalarType>;

  CountedCasts()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&begin).needsInputs(true).scopes(
                {at::RecordScope::FUNCTION}))) {
    counts.clear();
  }
  ~CountedCasts() { at::removeCallback(handle_); }
  CountedCasts(const CountedCasts&) = delete;
  CountedCasts& operator=(const CountedCasts&) = delete;

  [[nodiscard]] int of(std::int64_t numel, at::ScalarType from) const {
    const auto found = counts.find({numel, from});
    return found == counts.end() ? 0 : found->second;
  }

 private:
  static std::unique_ptr<at::ObserverContext> begin(
      const at::RecordFunction& function) {
    if (std::string_view(function.name()) == "aten::_to_copy") {
      const at::Tensor input = function.inputs()[0].toTensor();
      ++counts[{input.numel(), input.scalar_type()}];
    }
    return nullptr;
  }

  static inline thread_local std::map<Key, int> counts;
  at::CallbackHandle handle_;
};

}  // namespace accelerate::testing
