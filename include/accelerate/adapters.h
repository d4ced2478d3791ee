#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <accelerate/export.h>
#include <accelerate/weights.h>

/// Low-rank adapters (LoRA, Hu et al. 2021) as Python's PEFT has them: small
/// matrices beside the frozen weights of a model, trained in their place.
namespace accelerate {

/// Modules of a model by their dotted names.
class ACCELERATE_API ModulePattern {
 public:
  /// Matches nothing.
  ModulePattern() = default;
  /// Matches these names and their ends: {"q_proj"} matches
  /// "layers.0.attn.q_proj", but not "layers.0.attn.my_q_proj".
  ModulePattern(std::initializer_list<std::string> names) : names_(names) {}
  ModulePattern(std::vector<std::string> names) : names_(std::move(names)) {}
  /// A regular expression (ECMAScript) for the whole name, or "all-linear", if
  /// a function says that it takes this.
  ModulePattern(std::string expression) : expression_(std::move(expression)) {}
  ModulePattern(const char* expression) : expression_(expression) {}

  /// The names; empty if there is an expression.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  /// Empty if there are names.
  [[nodiscard]] const std::string& expression() const { return expression_; }
  /// Whether nothing was given, neither names nor an expression.
  [[nodiscard]] bool empty() const {
    return names_.empty() && expression_.empty();
  }
  /// Throws ConfigError if the expression is invalid.
  [[nodiscard]] bool matches(const std::string& module_name) const;

 private:
  std::vector<std::string> names_;
  std::string expression_;
};

/// Which biases of the model are trained with the adapters.
enum class AdapterBias {
  /// None: all biases stay frozen.
  none,
  /// All of the model's.
  all,
  /// Those of layers that have adapters.
  lora_only,
};

/// Values that adapters begin with.
enum class AdapterInit {
  /// The product is zero: A as LibTorch initialises a layer, B zero; for
  /// embeddings A zero and B normal.
  standard,
  /// Like standard, but A is normal with standard deviation 1 / rank.
  gaussian,
  /// Both as LibTorch initialises layers: the first outputs differ from the
  /// model's.
  random,
};

/// PEFT's LoraConfig, with its defaults; comments give PEFT's names where they
/// differ.
struct AdapterOptions {
  // The product.

  /// Rank of the product (r). At least 1. The number of trained parameters is
  /// proportional to it.
  std::int64_t rank = 8;
  /// Scale of the product, times 1 / rank (lora_alpha).
  double alpha = 8;

  // Layers.

  /// Layers that get adapters: Linear, Embedding, Conv1d, Conv2d, Conv3d, and
  /// the Conv1D of Hugging Face. "all-linear": all linear layers, except those
  /// named "lm_head", and "score" and "classifier" if `task_type` is
  /// "SEQ_CLS".
  ModulePattern target_modules = {};
  /// Layers that do not get adapters.
  ModulePattern exclude_modules = {};

  // Training.

  /// Probability with which elements of an adapter's input are dropped in
  /// training mode (lora_dropout). At least 0, and less than 1.
  double dropout = 0;
  /// Biases that are trained and saved with the adapters.
  AdapterBias bias = AdapterBias::none;
  /// Scales the product by alpha / sqrt(rank) (Kalajdzievski 2023), which suits
  /// high ranks.
  bool use_rslora = false;
  /// Trains the norms of the adapted weights' rows as well (DoRA, Liu et al.
  /// 2024). Slower.
  bool use_dora = false;
  /// Modules that are trained in full, on copies of their own, such as a new
  /// head: all whose names end with one of these.
  std::vector<std::string> modules_to_save = {};

  // Details.

  /// Weights of classes not listed above are [inputs, outputs]. For Hugging
  /// Face's Conv1D this is known.
  bool fan_in_fan_out = false;
  /// Initial values (init_lora_weights: true, "gaussian", false).
  AdapterInit init = AdapterInit::standard;
  /// Numbers of the layers whose modules get adapters; the first number in a
  /// dotted name counts. Only with names in `target_modules`.
  std::vector<std::int64_t> layers_to_transform = {};
  /// Names of lists of layers in which these numbers count; empty: all.
  std::vector<std::string> layers_pattern = {};
  /// Other ranks than `rank`, by regular expressions for the ends of names. The
  /// first in alphabetical order that matches is taken.
  std::map<std::string, std::int64_t> rank_pattern = {};
  /// Other alphas than `alpha`, by the same rules.
  std::map<std::string, double> alpha_pattern = {};
  /// Adapters of fp16 and bf16 weights are fp32 (the argument of
  /// get_peft_model()). False: they have the dtype of the weight, and take half
  /// the memory.
  bool autocast_adapter_dtype = true;

  // Facts for PEFT.

  /// Written to adapter_config.json, where PEFT looks for them: "CAUSAL_LM",
  /// and the directory or name of the model.
  std::string task_type = {};
  /// The name of the model on Hugging Face, or its directory.
  std::string base_model_name_or_path = {};
};

/// The module argument of the functions below: converts from a module, a holder
/// (ExportedModel, torch::nn::Linear) or a pointer. For a prepared model, pass
/// module().
class AdaptedModule {
 public:
  AdaptedModule(torch::nn::Module& module) : module_(&module) {}
  // A const handle still refers to a mutable module.
  template <class Holder>
    requires requires(const Holder& holder) {
      { *holder } -> std::convertible_to<const torch::nn::Module&>;
    }
  AdaptedModule(const Holder& holder)
      : module_(const_cast<torch::nn::Module*>(
            static_cast<const torch::nn::Module*>(&*holder))) {}

  [[nodiscard]] torch::nn::Module& operator*() const { return *module_; }
  [[nodiscard]] torch::nn::Module* operator->() const { return module_; }

 private:
  torch::nn::Module* module_;
};

/// Gives layers of a model an adapter, and freezes everything else. The model
/// stays as it is: its layers get children with PEFT's names
/// ("q_proj.lora_A.default.weight"), which optimizers, sharding, save_state()
/// and save_model() see; operators of LibTorch that multiply by the layer's
/// weight add the adapter's product to their result, in hand-written and in
/// exported models alike. The model's own weights get no gradients and are not
/// copied; they may be quantised. Call it before making the optimizer, and
/// before prepare(). The first adapter becomes active; others wait for
/// set_adapter().
///
/// Returns the names of the layers. Throws ConfigError for invalid options, for
/// a name that is in use or has a dot, if no layer matches, and for layers that
/// cannot have one, by name: of another class, or with a weight that another
/// layer of the same kind has too.
ACCELERATE_API std::vector<std::string> add_adapters(
    const AdaptedModule& model,
    const AdapterOptions& options,
    const std::string& name = "default");

/// Names of a model's adapters, in alphabetical order, as in the functions
/// below; empty if it has none.
[[nodiscard]] ACCELERATE_API std::vector<std::string> adapter_names(
    const AdaptedModule& model);
/// Names of the adapters with which the model computes.
[[nodiscard]] ACCELERATE_API std::vector<std::string> active_adapters(
    const AdaptedModule& model);
/// Names of the adapters that are merged into the weights.
[[nodiscard]] ACCELERATE_API std::vector<std::string> merged_adapters(
    const AdaptedModule& model);
/// The options of an adapter. Throws ConfigError if there is none of this name.
[[nodiscard]] ACCELERATE_API AdapterOptions adapter_options(
    const AdaptedModule& model,
    const std::string& name = "default");

/// Makes one adapter active, or several, whose products are added. Active
/// adapters are trained, others frozen, except those that were loaded without
/// `is_trainable`. Merged adapters are unmerged first.
ACCELERATE_API void set_adapter(
    const AdaptedModule& model,
    const std::string& name);
ACCELERATE_API void set_adapter(
    const AdaptedModule& model,
    const std::vector<std::string>& names);

/// While it lives, the model computes without adapters: for the reference of a
/// preference loss, say. Scopes nest. Throws ConfigError while adapters are
/// merged.
class ACCELERATE_API DisableAdapters {
 public:
  explicit DisableAdapters(const AdaptedModule& model);
  ~DisableAdapters();
  DisableAdapters(const DisableAdapters&) = delete;
  DisableAdapters& operator=(const DisableAdapters&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct MergeAdaptersOptions {
  /// The adapters; empty: the active ones.
  std::vector<std::string> names = {};
  /// Throws Error, and changes nothing, if a weight would not be finite.
  /// Computes every merged weight twice.
  bool safe_merge = false;
};

/// Adds adapters to the weights, so that the model computes as fast as without
/// them. Throws ConfigError, and changes nothing, for weights that are
/// quantised, offloaded or sharded, that another layer has too, and for
/// convolutions of several groups. A prepared model's weights are merged inside
/// full_parameters().
ACCELERATE_API void merge_adapters(
    const AdaptedModule& model,
    const MergeAdaptersOptions& options = {});
/// Takes merged adapters out of the weights again, which are then what they
/// were up to rounding.
ACCELERATE_API void unmerge_adapters(const AdaptedModule& model);
/// Merges, puts the copies of `modules_to_save` in the place of the modules,
/// and removes all adapters: leaves a model like the one before, with new
/// weights, which save_model() writes and the base model loads.
ACCELERATE_API void merge_and_unload(
    const AdaptedModule& model,
    const MergeAdaptersOptions& options = {});
/// Removes an adapter, which must not be merged.
ACCELERATE_API void delete_adapter(
    const AdaptedModule& model,
    const std::string& name);
/// Removes all adapters without merging them. The model stays frozen.
ACCELERATE_API void unload_adapters(const AdaptedModule& model);

/// Writes an adapter as PEFT's save_pretrained() does: adapter_config.json and
/// adapter_model.safetensors. `weights` replaces the model's own tensors, by
/// their names in the model: for a sharded model, pass what
/// Accelerator::get_state_dict() returned on this rank. Creates `directory`.
ACCELERATE_API void save_adapters(
    const AdaptedModule& model,
    const std::filesystem::path& directory,
    const std::string& name = "default",
    const WeightList& weights = {});

struct LoadAdaptersOptions {
  /// Trains the adapter whenever it is active. If false, it stays frozen.
  bool is_trainable = false;
};

/// Reads an adapter that save_adapters() or PEFT wrote. If the model already
/// has an adapter of this name, that one gets the values; otherwise one is
/// added, as by add_adapters(). Returns what PEFT's configuration says. Throws
/// ConfigError for what is not supported there, and as add_adapters();
/// CheckpointError naming all tensors that are missing, or fit nothing.
ACCELERATE_API AdapterOptions load_adapters(
    const AdaptedModule& model,
    const std::filesystem::path& directory,
    const std::string& name = "default",
    const LoadAdaptersOptions& options = {});

/// Reads adapter_config.json. Throws ConfigError for what is not supported,
/// CheckpointError if it is damaged, Error if it cannot be read.
[[nodiscard]] ACCELERATE_API AdapterOptions
read_adapter_options(const std::filesystem::path& directory);

}  // namespace accelerate
