#pragma once

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// Runs a case of the topic profiler_logging and the kind `profile`.
Json run_profile_case(const Json& input);

}  // namespace accelerate::oracle
