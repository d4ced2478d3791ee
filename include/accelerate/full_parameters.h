#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <accelerate/export.h>

namespace accelerate {

class FullParameters;

namespace detail {
struct PreparedModel;

ACCELERATE_API FullParameters
unshard_parameters(const std::shared_ptr<PreparedModel>& model);
}  // namespace detail

/// While it lives, a model's parameters are unsharded on every rank.
class ACCELERATE_API FullParameters {
 public:
  FullParameters(
      std::shared_ptr<detail::PreparedModel> model,
      std::vector<std::shared_ptr<void>> open)
      : model_(std::move(model)), open_(std::move(open)) {}

 private:
  std::shared_ptr<detail::PreparedModel> model_;
  std::vector<std::shared_ptr<void>> open_;
};

}  // namespace accelerate
