#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/file_system.h"

namespace accelerate::cli {

/// The operating system's file system with a progress bar of the bytes that
/// files get through it, which goes when this does.
std::shared_ptr<detail::FileSystem> make_disk_with_progress(
    const std::string& description,
    std::uint64_t expected_bytes);

}  // namespace accelerate::cli
