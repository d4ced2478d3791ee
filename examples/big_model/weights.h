#pragma once

#include <filesystem>

#include "model.h"

/// Writes random weights of a Gpt, a safetensors file per block and one for the
/// rest, and their index. At most one block is in memory.
void write_random_weights(
    const GptOptions& options,
    const std::filesystem::path& directory);
