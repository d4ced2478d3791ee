#include "planning/model_tree.h"

#include <set>
#include <string>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "planning/model_config.h"
#include "planning/model_tree_builder.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

ModelTree tree_of_tensors(const fs::path& path, const OnOpenedFile& on_file) {
  ModelTreeBuilder build(path.string());
  std::set<std::int64_t> seen;
  for (const auto& [name, tensor] : open_weights(path, on_file)) {
    // Tied tensors count once.
    if (tensor.storage != 0 && !seen.insert(tensor.storage).second) continue;
    build.add_parameter(name, tensor.shape);
  }
  return model_of(build.finish());
}

bool has_weights(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".safetensors") || name.ends_with(".bin") ||
        name.ends_with(".pt") || name == ".metadata") {
      return true;
    }
  }
  return false;
}

}  // namespace

ModelTree model_of(ModuleNode root) {
  ModelTree model;
  model.root = std::move(root);
  model.num_parameters = static_cast<std::uint64_t>(num_parameters(model.root));
  return model;
}

ModelTree read_model_tree(const fs::path& path, const OnOpenedFile& on_file) {
  if (!fs::exists(path)) {
    throw ConfigError(format(
        "[estimate-memory] {} does not exist; pass a directory, a safetensors "
        "file or a config.json on this machine (nothing is downloaded)",
        path.string()));
  }
  const bool is_directory = fs::is_directory(path);
  const fs::path config =
      (is_directory ? path : path.parent_path()) / "config.json";
  const bool is_config = is_directory ? !has_weights(path) : path == config;
  if (is_config && !fs::exists(config)) {
    throw ConfigError(format(
        "[estimate-memory] {} holds neither weights nor a config.json",
        path.string()));
  }
  ModelTree model =
      is_config ? read_model_config(config) : tree_of_tensors(path, on_file);
  model.transformer = find_transformer_shape(config);
  return model;
}

}  // namespace accelerate::detail

namespace accelerate {

TransformerShape read_transformer_shape(const std::string& given) {
  namespace fs = std::filesystem;
  const fs::path path(given);
  const fs::path config = fs::is_directory(path) ? path / "config.json"
      : path.filename() == "config.json"         ? path
                                         : path.parent_path() / "config.json";
  if (!fs::exists(path) || !fs::exists(config)) {
    throw ConfigError(detail::format(
        "[planning] {} has no config.json, from which the layers, heads and "
        "sizes of the model are read; pass a directory that has one",
        given));
  }
  const auto shape = detail::find_transformer_shape(config);
  if (shape) return *shape;
  throw ConfigError(detail::format(
      "[planning] {} does not say how many layers and heads of which size the "
      "model has (num_hidden_layers, num_attention_heads, hidden_size, "
      "vocab_size)",
      config.string()));
}

}  // namespace accelerate
