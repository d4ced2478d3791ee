#pragma once

#include <vector>

#include "oracle/departures.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

/// Runs a case of kind "dispatch": dispatch_model(), cpu_offload(),
/// disk_offload() or load_checkpoint_and_dispatch(), forwards, the state dict,
/// and the end of offloading. The recorded device 0 is a pretend device.
Json run_dispatched_case(const Json& input);

/// The deliberate differences from Accelerate in such cases.
std::vector<Departure> dispatched_case_departures();

}  // namespace accelerate::oracle
