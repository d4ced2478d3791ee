#pragma once

#include <map>
#include <string>

namespace accelerate::detail {

/// Variables that Environment::current() has on this thread while it lives,
/// instead of the process's or besides them. The environment of the process,
/// which other threads may be reading, is left alone. Scopes end in the reverse
/// order of their beginning.
class ThreadEnvironment {
 public:
  explicit ThreadEnvironment(std::map<std::string, std::string> variables);
  ThreadEnvironment(const ThreadEnvironment&) = delete;
  ThreadEnvironment& operator=(const ThreadEnvironment&) = delete;
  ~ThreadEnvironment();

  /// Those of this thread's scopes, the inner ones' first; null if it has none.
  static const std::map<std::string, std::string>* variables_of_thread();

 private:
  std::map<std::string, std::string> variables_;
  const ThreadEnvironment* outer_;
};

}  // namespace accelerate::detail
