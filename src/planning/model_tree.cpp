#include "planning/model_tree.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files.h"
#include "base/sizes.h"
#include "base/text.h"
#include "format/tensors/weights.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Sizes = std::vector<std::int64_t>;

std::int64_t count(const Sizes& sizes) {
  std::int64_t total = 1;
  for (const std::int64_t size : sizes) total *= size;
  return total;
}

// Builds a tree of modules by their dotted names.
class Builder {
 public:
  void add_module(const std::string& path, const std::string& class_name) {
    at(path).class_name = class_name;
  }
  void add_parameter(const std::string& name, const Sizes& sizes) {
    add(name, "float32", count(sizes), &ModuleNode::parameters);
  }
  // Buffers are integers, such as position ids.
  void add_buffer(const std::string& name, const Sizes& sizes) {
    add(name, "int64", count(sizes), &ModuleNode::buffers);
  }
  void add_linear(
      const std::string& path,
      std::int64_t in,
      std::int64_t out,
      bool has_bias = true) {
    add_parameter(path + ".weight", {out, in});
    if (has_bias) add_parameter(path + ".bias", {out});
  }
  void add_layer_norm(const std::string& path, std::int64_t size) {
    add_parameter(path + ".weight", {size});
    add_parameter(path + ".bias", {size});
  }

  ModelTree finish() {
    ModelTree model;
    model.root = std::move(root_);
    model.num_parameters =
        static_cast<std::uint64_t>(num_parameters(model.root));
    return model;
  }

 private:
  ModuleNode& at(const std::string& path) {
    ModuleNode* node = &root_;
    if (path.empty()) return root_;
    for (const std::string& step : split(path, '.')) {
      const auto found = std::find_if(
          node->children.begin(),
          node->children.end(),
          [&](const ModuleNode& child) { return child.name == step; });
      if (found != node->children.end()) {
        node = &*found;
      } else {
        node->children.emplace_back();
        node = &node->children.back();
        node->name = step;
      }
    }
    return *node;
  }

  void add(
      const std::string& name,
      const std::string& dtype,
      std::int64_t num_elements,
      std::vector<ModuleTensor> ModuleNode::*list) {
    const std::size_t dot = name.rfind('.');
    const std::string path =
        dot == std::string::npos ? std::string() : name.substr(0, dot);
    const double num_bytes =
        static_cast<double>(num_elements) * dtype_bytes(dtype);
    (at(path).*list)
        .push_back(
            {name.substr(dot + 1),
             dtype,
             num_elements,
             static_cast<std::uint64_t>(num_bytes),
             next_id_++});
  }

  ModuleNode root_;
  std::uint64_t next_id_ = 0;
};

std::int64_t number(
    const Json& config,
    std::initializer_list<const char*> names,
    std::optional<std::int64_t> default_value = std::nullopt) {
  for (const char* const name : names) {
    if (config.contains(name) && config[name].is_number_integer()) {
      return config[name];
    }
  }
  if (default_value) return *default_value;
  throw ConfigError(
      format("[estimate-memory] config.json has no {}", *names.begin()));
}

WrapPolicy layers_of(std::vector<std::string> class_names) {
  return {
      .kind = WrapPolicy::Kind::classes, .class_names = std::move(class_names)};
}

ModelTree bert_tree(const Json& config) {
  const auto hidden = number(config, {"hidden_size"});
  const auto inner = number(config, {"intermediate_size"});
  const auto layers = number(config, {"num_hidden_layers"});
  const auto positions = number(config, {"max_position_embeddings"}, 512);
  Builder build;
  build.add_module("embeddings", "BertEmbeddings");
  build.add_parameter(
      "embeddings.word_embeddings.weight",
      {number(config, {"vocab_size"}), hidden});
  build.add_parameter(
      "embeddings.position_embeddings.weight", {positions, hidden});
  build.add_parameter(
      "embeddings.token_type_embeddings.weight",
      {number(config, {"type_vocab_size"}, 2), hidden});
  build.add_layer_norm("embeddings.LayerNorm", hidden);
  build.add_buffer("embeddings.position_ids", {1, positions});
  build.add_buffer("embeddings.token_type_ids", {1, positions});
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string layer = format("encoder.layer.{}", i);
    build.add_module(layer, "BertLayer");
    for (const char* const projection : {"query", "key", "value"}) {
      build.add_linear(
          format("{}.attention.self.{}", layer, projection), hidden, hidden);
    }
    build.add_linear(layer + ".attention.output.dense", hidden, hidden);
    build.add_layer_norm(layer + ".attention.output.LayerNorm", hidden);
    build.add_linear(layer + ".intermediate.dense", hidden, inner);
    build.add_linear(layer + ".output.dense", inner, hidden);
    build.add_layer_norm(layer + ".output.LayerNorm", hidden);
  }
  build.add_linear("pooler.dense", hidden, hidden);
  ModelTree model = build.finish();
  model.no_split = layers_of({"BertEmbeddings", "BertLayer"});
  return model;
}

ModelTree gpt2_tree(const Json& config) {
  const auto hidden = number(config, {"n_embd", "hidden_size"});
  const auto layers = number(config, {"n_layer", "num_hidden_layers"});
  const auto inner = number(config, {"n_inner"}, 4 * hidden);
  Builder build;
  build.add_parameter("wte.weight", {number(config, {"vocab_size"}), hidden});
  build.add_parameter(
      "wpe.weight", {number(config, {"n_positions", "n_ctx"}, 1024), hidden});
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string layer = format("h.{}", i);
    build.add_module(layer, "GPT2Block");
    build.add_layer_norm(layer + ".ln_1", hidden);
    build.add_linear(layer + ".attn.c_attn", hidden, 3 * hidden);
    build.add_linear(layer + ".attn.c_proj", hidden, hidden);
    build.add_layer_norm(layer + ".ln_2", hidden);
    build.add_linear(layer + ".mlp.c_fc", hidden, inner);
    build.add_linear(layer + ".mlp.c_proj", inner, hidden);
  }
  build.add_layer_norm("ln_f", hidden);
  ModelTree model = build.finish();
  model.no_split = layers_of({"GPT2Block"});
  return model;
}

ModelTree llama_tree(const Json& config, const std::string& kind) {
  const auto hidden = number(config, {"hidden_size"});
  const auto inner = number(config, {"intermediate_size"});
  const auto layers = number(config, {"num_hidden_layers"});
  const auto heads = number(config, {"num_attention_heads"});
  const auto kv_heads = number(config, {"num_key_value_heads"}, heads);
  const auto head = number(config, {"head_dim"}, hidden / heads);
  // Qwen2 has biases in the query, key and value projections.
  const bool has_bias =
      kind == "qwen2" || config.value("attention_bias", false);
  const std::string block = kind == "llama" ? "LlamaDecoderLayer"
      : kind == "mistral"                   ? "MistralDecoderLayer"
                                            : "Qwen2DecoderLayer";
  const auto vocabulary = number(config, {"vocab_size"});
  Builder build;
  build.add_parameter("model.embed_tokens.weight", {vocabulary, hidden});
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string layer = format("model.layers.{}", i);
    build.add_module(layer, block);
    build.add_linear(
        layer + ".self_attn.q_proj", hidden, heads * head, has_bias);
    build.add_linear(
        layer + ".self_attn.k_proj", hidden, kv_heads * head, has_bias);
    build.add_linear(
        layer + ".self_attn.v_proj", hidden, kv_heads * head, has_bias);
    build.add_linear(
        layer + ".self_attn.o_proj",
        heads * head,
        hidden,
        kind == "llama" && has_bias);
    for (const char* const projection : {"gate_proj", "up_proj"}) {
      build.add_linear(
          format("{}.mlp.{}", layer, projection), hidden, inner, false);
    }
    build.add_linear(layer + ".mlp.down_proj", inner, hidden, false);
    build.add_parameter(layer + ".input_layernorm.weight", {hidden});
    build.add_parameter(layer + ".post_attention_layernorm.weight", {hidden});
  }
  build.add_parameter("model.norm.weight", {hidden});
  if (!config.value("tie_word_embeddings", false)) {
    build.add_linear("lm_head", hidden, vocabulary, false);
  }
  ModelTree model = build.finish();
  model.no_split = layers_of({block});
  return model;
}

ModelTree tree_of_config(const fs::path& path) {
  const Json config = Json::parse(read_file(path), nullptr, false);
  if (!config.is_object()) {
    throw ConfigError(
        format("[estimate-memory] {} is not a JSON object", path.string()));
  }
  const std::string kind = config.value("model_type", "");
  ModelTree model;
  if (kind == "bert") {
    model = bert_tree(config);
  } else if (kind == "gpt2") {
    model = gpt2_tree(config);
  } else if (kind == "llama" || kind == "mistral" || kind == "qwen2") {
    model = llama_tree(config, kind);
  } else {
    throw ConfigError(format(
        "[estimate-memory] {} has model_type \"{}\"; known are bert, gpt2, "
        "llama, mistral and qwen2; for others give the safetensors files",
        path.string(),
        kind));
  }
  return model;
}

std::optional<TransformerShape> shape_in(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  const Json config = Json::parse(read_file(path), nullptr, false);
  if (!config.is_object()) return std::nullopt;
  TransformerShape shape;
  shape.num_layers = number(config, {"num_hidden_layers", "n_layer"}, 0);
  shape.hidden_size = number(config, {"hidden_size", "n_embd"}, 0);
  shape.num_heads = number(config, {"num_attention_heads", "n_head"}, 0);
  shape.vocabulary = number(config, {"vocab_size"}, 0);
  const bool is_known =
      shape.num_layers > 0 && shape.hidden_size > 0 && shape.num_heads > 0;
  return is_known ? std::optional(shape) : std::nullopt;
}

ModelTree tree_of_tensors(const fs::path& path) {
  Builder build;
  std::set<std::int64_t> seen;
  for (const auto& [name, tensor] : open_weights(path)) {
    // Tied tensors count once.
    if (tensor.storage != 0 && !seen.insert(tensor.storage).second) continue;
    build.add_parameter(name, Sizes(tensor.shape.begin(), tensor.shape.end()));
  }
  return build.finish();
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

ModelTree read_model_tree(const fs::path& path) {
  if (!fs::exists(path)) {
    throw ConfigError(format(
        "[estimate-memory] {} does not exist; give a directory, a safetensors "
        "file or a config.json on this machine (nothing is fetched)",
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
  ModelTree model = is_config ? tree_of_config(config) : tree_of_tensors(path);
  model.transformer = shape_in(config);
  return model;
}

}  // namespace accelerate::detail
