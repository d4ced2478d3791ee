#pragma once

#include <exception>
#include <string>
#include <utility>

namespace accelerate::detail {

/// Thrown while an operation advances: this rank and `rank` began different
/// operations.
struct DisagreementError : std::exception {
  DisagreementError(int with, std::string own, std::string other)
      : rank(with), own_call(std::move(own)), other_call(std::move(other)) {}

  [[nodiscard]] const char* what() const noexcept override {
    return "ranks disagree";
  }

  int rank;
  std::string own_call;
  std::string other_call;
};

}  // namespace accelerate::detail
