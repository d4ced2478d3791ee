#pragma once

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// Runs a case of topic profiler_logging of kind `profile`.
Json run_profile_case(const Json& input);

}  // namespace accelerate::oracle
