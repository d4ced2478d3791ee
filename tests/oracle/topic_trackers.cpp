#include <string>

#include "oracle/oracle.h"
#include "support/python_calls.h"
#include "support/tracked_run.h"
#include "support/tracker_case.h"

namespace accelerate::oracle {

Json run_trackers(const OrderedJson& input) {
  const std::string kind = input.at("kind");
  if (kind == "filter") return testing::choose_trackers(input);
  if (kind == "custom") return testing::run_with_own_tracker(input);
  if (testing::needs_python(input) && testing::python_for_tests().empty())
    throw Skipped("there is no python3");
  return testing::run_with_tracker(input);
}

}  // namespace accelerate::oracle
