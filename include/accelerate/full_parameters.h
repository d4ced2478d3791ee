#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <accelerate/export.h>

namespace accelerate {

namespace detail {
struct Session;
}  // namespace detail

/// While it lives, a model's parameters are unsharded on every rank.
class ACCELERATE_API FullParameters {
 public:
  FullParameters(
      std::shared_ptr<detail::Session> session,
      std::vector<std::shared_ptr<void>> open)
      : session_(std::move(session)), open_(std::move(open)) {}

 private:
  std::shared_ptr<detail::Session> session_;
  std::vector<std::shared_ptr<void>> open_;
};

}  // namespace accelerate
