#include "planning/model_config.h"

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "planning/model_tree_builder.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Names = std::initializer_list<const char*>;

// The value under the first of these names that is present and not null.
const Json* find_value(const Json& config, Names names) {
  for (const char* const name : names) {
    const auto found = config.find(name);
    if (found != config.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

bool is_between(const Json& value, std::int64_t least, std::int64_t most) {
  // A number beyond 63 bits is unsigned and would become negative.
  return value.is_number_integer() && value >= least && value <= most;
}

class Config {
 public:
  explicit Config(const fs::path& path) : where_(path.string()) {
    ParsedJson parsed = parse_json(read_file(path));
    if (!parsed.value.is_object()) {
      throw ConfigError(format(
          "[estimate-memory] {} is not a JSON object{}{}",
          where_,
          parsed.complaint.empty() ? "" : ": ",
          parsed.complaint));
    }
    values_ = std::move(parsed.value);
  }

  [[nodiscard]] const std::string& where() const { return where_; }

  [[nodiscard]] std::int64_t number(
      Names names,
      std::int64_t least = 1,
      std::int64_t most = kMostSize) const {
    const Json* const value = find_value(values_, names);
    if (value == nullptr) {
      throw ConfigError(
          format("[estimate-memory] {} has no {}", where_, *names.begin()));
    }
    if (!is_between(*value, least, most)) {
      refuse(
          *names.begin(),
          *value,
          format("a whole number from {} to {}", least, most));
    }
    return value->get<std::int64_t>();
  }

  [[nodiscard]] std::int64_t number_or(
      Names names,
      std::int64_t default_value,
      std::int64_t least = 1) const {
    return find_value(values_, names) == nullptr ? default_value
                                                 : number(names, least);
  }

  /// False if it is missing.
  [[nodiscard]] bool flag(const char* name) const {
    const Json* const value = find_value(values_, {name});
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(name, *value, "true or false");
    return value->get<bool>();
  }

  /// Empty if it is missing.
  [[nodiscard]] std::string text(const char* name) const {
    const Json* const value = find_value(values_, {name});
    if (value == nullptr) return {};
    if (!value->is_string()) refuse(name, *value, "a string");
    return value->get<std::string>();
  }

 private:
  [[noreturn]] void
  refuse(const char* name, const Json& value, const std::string& wanted) const {
    throw ConfigError(format(
        "[estimate-memory] {}: {} is {}, not {}",
        where_,
        name,
        printable(value.dump(-1, ' ', false, Json::error_handler_t::replace)),
        wanted));
  }

  std::string where_;
  Json values_;
};

// Adds common layers, naming their tensors.
class LayerBuilder {
 public:
  using Sizes = std::initializer_list<std::int64_t>;

  explicit LayerBuilder(const std::string& where) : tree_(where) {}

  void add_module(const std::string& path, const std::string& class_name) {
    tree_.add_module(path, class_name);
  }
  void add_parameter(const std::string& name, Sizes sizes) {
    tree_.add_parameter(name, safetensors::Shape(sizes.begin(), sizes.end()));
  }
  void add_buffer(const std::string& name, Sizes sizes) {
    tree_.add_buffer(name, safetensors::Shape(sizes.begin(), sizes.end()));
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

  ModelTree finish() { return model_of(tree_.finish()); }

 private:
  ModelTreeBuilder tree_;
};

WrapPolicy layers_of(std::vector<std::string> class_names) {
  return {
      .kind = WrapPolicy::Kind::classes, .class_names = std::move(class_names)};
}

ModelTree bert_tree(const Config& config) {
  const auto hidden = config.number({"hidden_size"});
  const auto inner = config.number({"intermediate_size"});
  const auto layers = config.number({"num_hidden_layers"}, 0, kMostLayers);
  const auto positions = config.number_or({"max_position_embeddings"}, 512);
  LayerBuilder build(config.where());
  build.add_module("embeddings", "BertEmbeddings");
  build.add_parameter(
      "embeddings.word_embeddings.weight",
      {config.number({"vocab_size"}), hidden});
  build.add_parameter(
      "embeddings.position_embeddings.weight", {positions, hidden});
  build.add_parameter(
      "embeddings.token_type_embeddings.weight",
      {config.number_or({"type_vocab_size"}, 2, 0), hidden});
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

ModelTree gpt2_tree(const Config& config) {
  const auto hidden = config.number({"n_embd", "hidden_size"});
  const auto layers =
      config.number({"n_layer", "num_hidden_layers"}, 0, kMostLayers);
  const auto inner = config.number_or({"n_inner"}, 4 * hidden);
  LayerBuilder build(config.where());
  build.add_parameter("wte.weight", {config.number({"vocab_size"}), hidden});
  build.add_parameter(
      "wpe.weight", {config.number_or({"n_positions", "n_ctx"}, 1024), hidden});
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

ModelTree llama_tree(const Config& config, const std::string& kind) {
  const auto hidden = config.number({"hidden_size"});
  const auto inner = config.number({"intermediate_size"});
  const auto layers = config.number({"num_hidden_layers"}, 0, kMostLayers);
  const auto heads = config.number({"num_attention_heads"});
  const auto kv_heads = config.number_or({"num_key_value_heads"}, heads);
  const auto head = config.number_or({"head_dim"}, hidden / heads);
  // Qwen2 has biases in the query, key and value projections.
  const bool has_bias = kind == "qwen2" || config.flag("attention_bias");
  const std::string block = kind == "llama" ? "LlamaDecoderLayer"
      : kind == "mistral"                   ? "MistralDecoderLayer"
                                            : "Qwen2DecoderLayer";
  const auto vocabulary = config.number({"vocab_size"});
  LayerBuilder build(config.where());
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
  if (!config.flag("tie_word_embeddings")) {
    build.add_linear("lm_head", hidden, vocabulary, false);
  }
  ModelTree model = build.finish();
  model.no_split = layers_of({block});
  return model;
}

}  // namespace

ModelTree read_model_config(const fs::path& path) {
  const Config config(path);
  const std::string kind = config.text("model_type");
  if (kind == "bert") return bert_tree(config);
  if (kind == "gpt2") return gpt2_tree(config);
  if (kind == "llama" || kind == "mistral" || kind == "qwen2") {
    return llama_tree(config, kind);
  }
  throw ConfigError(format(
      "[estimate-memory] model_type of {} is \"{}\", but must be bert, gpt2, "
      "llama, mistral or qwen2; for others, pass the safetensors files",
      config.where(),
      printable(kind)));
}

std::optional<TransformerShape> find_transformer_shape(const fs::path& path) {
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) return std::nullopt;
  const Json config = parse_json(read_file(path)).value;
  if (!config.is_object()) return std::nullopt;
  // Weights can have the config.json of any model beside them.
  const auto size = [&](Names names, std::int64_t most) -> std::int64_t {
    const Json* const value = find_value(config, names);
    const bool is_size = value != nullptr && is_between(*value, 1, most);
    return is_size ? value->get<std::int64_t>() : 0;
  };
  TransformerShape shape{
      .num_layers = size({"num_hidden_layers", "n_layer"}, kMostLayers),
      .hidden_size = size({"hidden_size", "n_embd"}, kMostSize),
      .num_heads = size({"num_attention_heads", "n_head"}, kMostSize),
      .vocabulary = size({"vocab_size"}, kMostSize),
      .num_kv_heads = size({"num_key_value_heads"}, kMostSize),
      .head_size = size({"head_dim"}, kMostSize),
      .intermediate_size =
          size({"intermediate_size", "n_inner", "ffn_dim"}, kMostSize)};
  const auto text = [&](Names names) -> std::string {
    const Json* const value = find_value(config, names);
    return value != nullptr && value->is_string() ? value->get<std::string>()
                                                  : std::string();
  };
  const Json* const tied = find_value(config, {"tie_word_embeddings"});
  const std::string kind = text({"model_type"});
  shape.is_tied = tied != nullptr && tied->is_boolean()
      ? tied->get<bool>()
      : kind == "gpt2" || kind == "bert";
  // Llama and later models have MLPs with a gate.
  shape.is_gated = text({"hidden_act", "hidden_activation"}) == "silu" ||
      kind.starts_with("gemma");
  shape.num_experts =
      size({"num_local_experts", "num_experts", "n_routed_experts"}, kMostSize);
  if (shape.num_experts > 0) {
    shape.top_k = size(
        {"num_experts_per_tok", "num_experts_per_token"}, shape.num_experts);
    shape.expert_intermediate_size = size({"moe_intermediate_size"}, kMostSize);
    shape.shared_intermediate_size =
        size({"shared_expert_intermediate_size"}, kMostSize);
    if (shape.shared_intermediate_size == 0) {
      shape.shared_intermediate_size = shape.expert_intermediate_size *
          size({"n_shared_experts"}, kMostLayers);
    }
    shape.num_dense_layers = size({"first_k_dense_replace"}, shape.num_layers);
  }
  const bool is_known =
      shape.num_layers > 0 && shape.hidden_size > 0 && shape.num_heads > 0;
  return is_known ? std::optional(shape) : std::nullopt;
}

}  // namespace accelerate::detail
