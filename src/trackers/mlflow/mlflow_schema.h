#pragma once

#include <string_view>

namespace accelerate::detail {

/// The statements of mlflow_schema.sql, which the build embeds in the library.
extern const std::string_view kMlflowSchema;

}  // namespace accelerate::detail
