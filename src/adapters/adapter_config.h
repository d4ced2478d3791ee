#pragma once

#include <filesystem>
#include <string>

#include <accelerate/adapters.h>

namespace accelerate::detail {

inline constexpr const char* kAdapterConfigName = "adapter_config.json";
inline constexpr const char* kAdapterWeightsName = "adapter_model.safetensors";

/// The contents of adapter_config.json, as PEFT 0.21 writes it.
std::string config_text(const AdapterOptions& options);

/// Throws CheckpointError for text that is not a configuration, ConfigError for
/// settings that are not supported. `path` is for messages.
AdapterOptions parse_config(
    const std::string& text,
    const std::filesystem::path& path);

}  // namespace accelerate::detail
