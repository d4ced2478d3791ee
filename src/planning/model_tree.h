#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <accelerate/planning.h>

#include "format/weights/weights.h"
#include "modules/module_tree.h"
#include "modules/wrap_policy.h"

namespace accelerate::detail {

/// A model on disk, counted as if all of it were float32.
struct ModelTree {
  ModuleNode root;
  std::uint64_t num_parameters = 0;
  /// The classes of modules that are one layer, if they are known.
  WrapPolicy no_split = {.kind = WrapPolicy::Kind::none};
  std::optional<TransformerShape> transformer;
};

/// Returns a model of which only the tree is known.
ModelTree model_of(ModuleNode root);

/// Reads weights in any format that open_weights() supports, the config.json of
/// BERT, GPT-2, Llama, Mistral or Qwen2, or a directory with one of these.
/// `on_file`: passed to open_weights(). Throws ConfigError for other files,
/// listing the supported ones, and for models beyond the limits of
/// ModelTreeBuilder and model_config.h.
ModelTree read_model_tree(
    const std::filesystem::path& path,
    const OnOpenedFile& on_file = {});

}  // namespace accelerate::detail
