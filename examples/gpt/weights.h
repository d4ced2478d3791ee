#pragma once

#include <filesystem>

#include "model.h"

/// Writes the random weights with which Gpt(options) would begin, a safetensors
/// file per block and one for the rest, and their index. At most one block is
/// in memory.
void write_initial_weights(
    const GptOptions& options,
    const std::filesystem::path& directory);
