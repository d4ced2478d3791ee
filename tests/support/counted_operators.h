#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/record_function.h>

namespace accelerate::testing {

/// Counts, while it lives, the operators that this thread calls, those of
/// backward passes of the CPU included, which run on this thread.
class CountedOperators {
 public:
  CountedOperators()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&begin, &end)
                .scopes({at::RecordScope::FUNCTION}))) {
    counts.clear();
    num_outermost = 0;
    depth = 0;
  }
  ~CountedOperators() { at::removeCallback(handle_); }
  CountedOperators(const CountedOperators&) = delete;
  CountedOperators& operator=(const CountedOperators&) = delete;

  /// How often an operator was called, by other operators as well:
  /// "aten::add_".
  [[nodiscard]] int of(const std::string& name) const {
    const auto found = counts.find(name);
    return found == counts.end() ? 0 : found->second;
  }
  /// How many operators the program itself called.
  [[nodiscard]] int total() const { return num_outermost; }
  [[nodiscard]] const std::map<std::string, int>& all() const { return counts; }

 private:
  static bool is_operator(const at::RecordFunction& function) {
    return std::string_view(function.name()).starts_with("aten::");
  }
  static std::unique_ptr<at::ObserverContext> begin(
      const at::RecordFunction& function) {
    if (!is_operator(function)) return nullptr;
    ++counts[function.name()];
    if (depth++ == 0) ++num_outermost;
    return nullptr;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext*) {
    if (is_operator(function)) --depth;
  }

  static inline thread_local std::map<std::string, int> counts;
  static inline thread_local int num_outermost = 0;
  static inline thread_local int depth = 0;
  at::CallbackHandle handle_;
};

}  // namespace accelerate::testing
