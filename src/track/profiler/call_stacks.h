#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "track/profiler/recorded_cycle.h"

namespace accelerate::detail {

/// The return addresses of the functions under way, the innermost first.
std::vector<void*> addresses_here();

/// What the addresses in the events' stacks are called: "file.cpp(12): name"
/// where debug information tells, else "name" as far as it is exported, else
/// "program+0x1234". Leaves out addresses inside LibTorch, this library and the
/// system's libraries.
std::unordered_map<void*, std::string> describe_stacks(
    const std::vector<RecordedEvent>& events);

}  // namespace accelerate::detail
