#pragma once

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// Runs a case of topic profiler_logging of kind `logger`.
Json run_logger_case(const Json& input);
/// The same of kind `tqdm`.
Json run_progress_case(const Json& input);

}  // namespace accelerate::oracle
