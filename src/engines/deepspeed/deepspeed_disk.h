#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engines/deepspeed/deepspeed.h"
#include "engines/training_request.h"

namespace accelerate::detail {

/// What the configuration offloads to "nvme"; unset: nothing. Throws ConfigError
/// if it lacks a directory, a stage does not shard what is to be kept there, or
/// a value of an offload section cannot be.
std::optional<DiskRequest> read_disk_request(const DeepSpeedConfig& config);

/// Whether read_disk_request() reads the value at `path`.
bool is_read_for_disk(const DeepSpeedFields& found, std::string_view path);

/// Why a key of an offload section, or of "aio", has no effect; empty for other
/// keys.
std::string without_effect_on_disk(std::string_view path);

}  // namespace accelerate::detail
