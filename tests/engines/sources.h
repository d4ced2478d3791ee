#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>

#include "engines/request/read_request.h"

namespace accelerate::testing {

using Variables = std::map<std::string, std::string, std::less<>>;

/// The sources of a program with `options` under a launcher with `variables`.
inline detail::RequestSources sources(
    ParallelOptions options,
    const Variables& variables = {},
    std::string mixed_precision = "no") {
  const detail::Environment environment(variables);
  const std::array found{detail::source_from_environment(environment)};
  return {
      .parallel = std::move(options),
      .mixed_precision = std::move(mixed_precision),
      .settings = detail::resolve(found),
      .environment = environment};
}

inline detail::TrainingRequest request(
    ParallelOptions options,
    const Variables& variables = {},
    std::string mixed_precision = "no") {
  return detail::read_training_request(
      sources(std::move(options), variables, std::move(mixed_precision)));
}

}  // namespace accelerate::testing
