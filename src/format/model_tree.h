#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "format/memory_estimate.h"

namespace accelerate::detail {

/// The sizes that activations depend on.
struct TransformerShape {
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t vocabulary = 0;
};

/// A model on disk, counted as if all of it were float32.
struct ModelTree {
  ModuleNode root;
  std::uint64_t num_parameters = 0;
  /// Classes that are one layer, where they are known.
  std::vector<std::string> no_split_classes;
  std::optional<TransformerShape> transformer;
};

/// Of weights in any format that open_weights reads, or of the config.json of
/// BERT, GPT-2, Llama, Mistral or Qwen2, or a folder with one of these. Throws
/// ConfigError for others, naming what is known.
ModelTree read_model_tree(const std::filesystem::path& path);

/// Everything that training takes on one device, in bytes.
struct TrainingMemory {
  std::uint64_t weights = 0;
  std::uint64_t masters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  /// Of the largest unit while it is gathered from its parts.
  std::uint64_t gathered = 0;
  /// Nothing where the shape is not known.
  std::optional<std::uint64_t> activations;
  [[nodiscard]] std::uint64_t total() const {
    return weights + masters + gradients + optimizer + gathered +
        activations.value_or(0);
  }
};

struct TrainingPlan {
  std::string weights_dtype = "float32";  ///< or bfloat16, float16
  bool uses_16_bits = false;              ///< autocast, or weights of 16 bits
  std::string optimizer = "adamw";  ///< adam, sgd, momentum, adagrad, lomo
  std::int64_t batch_size = 1;      ///< on one device
  std::int64_t sequence_length = 0;
  std::int64_t num_shards = 1;
  bool recomputes_activations = false;
};

/// Activations are counted as in Korthikanti et al., Reducing Activation
/// Recomputation in Large Transformer Models (2022), section 4. Throws
/// ConfigError for a dtype or optimizer that there is not.
TrainingMemory training_memory(
    const ModelTree& model,
    std::uint64_t largest_layer,
    const TrainingPlan& plan);

}  // namespace accelerate::detail
