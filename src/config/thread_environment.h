#pragma once

#include <map>
#include <string>

namespace accelerate::detail {

/// While it lives, Environment::current() on this thread has these variables,
/// in addition to or in place of the process's. The process's environment,
/// which other threads may be reading, is left alone. Scopes must end in
/// reverse order of creation.
class ThreadEnvironment {
 public:
  explicit ThreadEnvironment(std::map<std::string, std::string> variables);
  ThreadEnvironment(const ThreadEnvironment&) = delete;
  ThreadEnvironment& operator=(const ThreadEnvironment&) = delete;
  ~ThreadEnvironment();

  /// The variables of this thread's scopes; inner scopes take precedence. Null
  /// if there are no scopes.
  static const std::map<std::string, std::string>* variables_of_thread();

 private:
  std::map<std::string, std::string> variables_;
  const ThreadEnvironment* outer_;
};

}  // namespace accelerate::detail
