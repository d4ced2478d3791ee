#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "planning/model_tree.h"

namespace accelerate::detail {

/// Larger models are refused. A layer takes some twenty tensors of the tree.
inline constexpr std::int64_t kMostLayers = 10'000;
/// The largest size, such as that of the vocabulary.
inline constexpr std::int64_t kMostSize = std::int64_t{1} << 31U;

/// The model that a config.json of BERT, GPT-2, Llama, Mistral or Qwen2
/// describes, as its Python class builds it. Throws ConfigError naming the file
/// and the key for values of another type or beyond the limits, and for other
/// models.
ModelTree read_model_config(const std::filesystem::path& path);

/// The shape of any transformer whose config.json is at `path`; nothing if
/// there is no such file, or not all of the shape in it.
std::optional<TransformerShape> find_transformer_shape(
    const std::filesystem::path& path);

}  // namespace accelerate::detail
