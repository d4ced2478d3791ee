#pragma once

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// Runs a case of the topic profiler_logging and the kind `logger`.
Json run_logger_case(const Json& input);
/// Runs a case of the kind `tqdm`.
Json run_progress_case(const Json& input);

}  // namespace accelerate::oracle
