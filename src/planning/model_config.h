#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "planning/model_tree.h"

namespace accelerate::detail {

/// Models with more layers are refused. A layer adds about twenty tensors to
/// the tree.
inline constexpr std::int64_t kMostLayers = 10'000;
/// The largest size, such as the size of the vocabulary.
inline constexpr std::int64_t kMostSize = std::int64_t{1} << 31U;

/// Returns the model that a config.json of BERT, GPT-2, Llama, Mistral or Qwen2
/// describes, as its Python class builds it. Throws ConfigError, naming the
/// file and the key, for values of the wrong type or beyond the limits, and for
/// other models.
ModelTree read_model_config(const std::filesystem::path& path);

/// Returns the shape of any transformer from the config.json at `path`; nullopt
/// if there is no such file or it does not give the whole shape.
std::optional<TransformerShape> find_transformer_shape(
    const std::filesystem::path& path);

}  // namespace accelerate::detail
