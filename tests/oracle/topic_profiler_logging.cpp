#include <string>

#include "oracle/logger_cases.h"
#include "oracle/oracle.h"
#include "oracle/profile_cases.h"

namespace accelerate::oracle {

Json run_profiler_logging(const Json& input) {
  const std::string kind = input.at("kind");
  if (kind == "profile") return run_profile_case(input);
  if (kind == "logger") return run_logger_case(input);
  if (kind == "tqdm") return run_progress_case(input);
  throw NotBuilt("profiler_logging: " + kind);
}

}  // namespace accelerate::oracle
