#pragma once

#include <string>
#include <vector>

#include "engines/training_request.h"

namespace accelerate::detail {

/// Says, in a sentence each, which directories of the request cannot hold its
/// files on this machine: those that are missing, are not directories, are not
/// writable, or are in memory although they may not be. Creates nothing.
std::vector<std::string> directory_complaints(const DiskRequest& request);

}  // namespace accelerate::detail
