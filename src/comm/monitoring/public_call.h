#pragma once

namespace accelerate::detail {

/// Names the function of the public interface in which this thread makes
/// collectives, for lists of calls and errors: "finish()". Of nested ones, the
/// outermost counts. `name` lives as long as the program.
class PublicCall {
 public:
  explicit PublicCall(const char* name) noexcept;
  PublicCall(const PublicCall&) = delete;
  PublicCall& operator=(const PublicCall&) = delete;
  ~PublicCall();

  /// Null outside all of them.
  static const char* current() noexcept;

 private:
  bool is_outermost_;
};

}  // namespace accelerate::detail
