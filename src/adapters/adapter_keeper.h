#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <accelerate/adapters.h>

#include "adapters/layer_adapter.h"
#include "adapters/layer_call.h"
#include "gate/added_products.h"
#include "gate/gate.h"
#include "gate/random_keeper.h"

namespace accelerate::detail {

/// A model's adapter.
struct KnownAdapter {
  AdapterOptions options;
  /// Whether it is trained while it is active.
  bool is_trainable = true;
};

/// An adapter that is in the weight of a layer.
struct MergedAdapter {
  std::string name;
  /// What DoRA multiplied the weight by; undefined without it.
  at::Tensor factor = {};
};

/// A layer that has adapters.
struct AdaptedLayer {
  /// Dotted name within the model.
  std::string name;
  KnownLayer known;
  std::int64_t groups = 1;
  std::map<std::string, LayerAdapter> adapters = {};
  /// The adapters in the weight, in the order of merging.
  std::vector<MergedAdapter> merged = {};
  /// Whether a forward has computed something else with the weight, as the head
  /// of a program does whose weight is the embedding's.
  bool has_other_use = false;
  /// Set if ranks have slices of the weight.
  std::optional<DividedProducts> division = std::nullopt;
  KnownLayer known_slice = {};
};

/// A parameter of `modules_to_save`.
struct CopiedParameter {
  /// Dotted name within the model.
  std::string name;
  /// The module of `modules_to_save` that has it.
  std::string module_name;
  /// The copies that adapters train.
  std::map<std::string, at::Tensor> copies = {};
};

/// The adapters of a model. It watches the weights of their layers
/// (gate/watched_tensor.h) and adds their products to what operators compute
/// with these, whichever operators the module's code calls. In a program's
/// forward, trained copies replace parameters.
class AdapterKeeper final : public GateKeeper,
                            public RandomKeeper,
                            public AddedProducts,
                            public std::enable_shared_from_this<AdapterKeeper> {
 public:
  /// `model` must be the root that all functions are called with.
  explicit AdapterKeeper(const torch::nn::Module& model) : model_(&model) {}

  [[nodiscard]] bool is_of(const torch::nn::Module& model) const {
    return model_ == &model;
  }

  /// Watches a weight; returns the entry of its layer, which stays where it is.
  AdaptedLayer& add_layer(AdaptedLayer layer, const at::Tensor& weight);
  CopiedParameter& add_copied(
      CopiedParameter parameter,
      const at::Tensor& original);
  /// The entry of a layer or a parameter with this name; null without one.
  [[nodiscard]] AdaptedLayer* layer(const std::string& name) const;
  [[nodiscard]] CopiedParameter* copied(const std::string& name) const;
  [[nodiscard]] std::vector<AdaptedLayer*> layers() const;
  [[nodiscard]] std::vector<CopiedParameter*> all_copied() const;
  /// Stops watching the tensor of an entry without adapters.
  void forget(const std::string& name, const at::Tensor& tensor);

  std::map<std::string, KnownAdapter> adapters;
  std::vector<std::string> active;
  /// Number of live DisableAdapters scopes.
  int num_disabled = 0;

  [[nodiscard]] bool is_active(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> merged_names() const;

  void call(GatedCall& call) override;
  [[nodiscard]] bool draws_random_numbers() const override;
  [[nodiscard]] Layer added_to(std::size_t unit) const override;
  void divide(std::size_t unit, DividedProducts how) override;
  void set_full(bool is_full) override { is_full_ = is_full; }
  /// Whether this rank has only a slice of the layer's weight now.
  [[nodiscard]] bool is_divided(const AdaptedLayer& layer) const {
    return layer.division && !is_full_;
  }

 private:
  /// A watched tensor: a layer's weight or a copied parameter.
  struct Unit {
    std::unique_ptr<AdaptedLayer> layer;
    std::unique_ptr<CopiedParameter> copied;
  };

  [[nodiscard]] const Unit* unit_of(const c10::IValue& value) const;
  /// The copy that takes the place of a parameter; undefined without one.
  [[nodiscard]] at::Tensor copy_for(const c10::IValue& value) const;
  [[nodiscard]] bool may_use_copies(GatedCall& call) const;
  [[nodiscard]] std::optional<c10::IValue> with_copies(
      const c10::IValue& value) const;
  /// Runs the operator with copies in the place of parameters. Returns false,
  /// having done nothing, if it takes none of them.
  bool run_with_copies(GatedCall& call) const;
  void note_other_uses(GatedCall& call) const;
  void watch_cast(const at::Tensor& cast, std::size_t unit);
  [[nodiscard]] at::Tensor with_adapters(
      const LayerCall& call,
      const AdaptedLayer& layer,
      at::Tensor result) const;

  const torch::nn::Module* model_;
  /// Indexed by the number of the watch; empty entries are no longer watched.
  std::vector<Unit> units_;
  bool is_full_ = false;
};

}  // namespace accelerate::detail
