#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "gate/biased_product.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// The layers of a module whose product and bias can be one operator. For
/// inputs of three and more dimensions torch::nn::functional::linear multiplies
/// and then adds the bias in a pass over the result of its own, where
/// aten::linear adds it within the product.
class LayerProducts {
 public:
  /// Finds the pairs `weight` and `bias`, `in_proj_weight` and `in_proj_bias`
  /// and so on of all modules.
  explicit LayerProducts(const torch::nn::Module& module);
  LayerProducts(const LayerProducts&) = delete;
  LayerProducts& operator=(const LayerProducts&) = delete;

  /// False if there is nothing to do: there is no such pair, or no forward so
  /// far has multiplied one of them with more than two dimensions. True before
  /// the first forward.
  [[nodiscard]] bool has_work() const {
    return !layers_.empty() && found_ != Found::none;
  }

 private:
  friend class LayerProductScope;
  friend struct LayerProductKernels;

  using Layer = std::shared_ptr<LayerProduct>;

  /// The layer whose weight a factor transposes; null if there is none.
  [[nodiscard]] Layer find(const at::Tensor& transposed);
  [[nodiscard]] Layer look_up(const at::Tensor& transposed) const;
  /// Notices weights whose memory has been replaced.
  void index_layers();

  std::vector<Layer> layers_;
  /// The place of each weight's memory, and the layers by place.
  std::vector<std::size_t> places_;
  std::unordered_map<std::size_t, Layer> by_place_;
  /// Whether weights were indexed in the current forward.
  bool is_indexed_ = false;
  /// What forwards have found so far.
  enum class Found { unknown, none, layers };
  std::atomic<Found> found_ = Found::unknown;
};

/// While alive, this thread's products with the layers' weights include the
/// bias, and the addition that follows does nothing. If something else follows
/// on such a product, it gets the product without the bias; a layer whose first
/// product is used like that is left alone from then on. Recordings have the
/// product with the bias. Must be destroyed on the thread that made it, the
/// innermost first.
class LayerProductScope {
 public:
  explicit LayerProductScope(LayerProducts& products);
  ~LayerProductScope();
  LayerProductScope(const LayerProductScope&) = delete;
  LayerProductScope& operator=(const LayerProductScope&) = delete;

 private:
  friend struct LayerProductKernels;

  LayerProducts& products_;
  LayerProductScope* enclosing_;
  /// The last product that includes the bias, and the bias.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> last_{
      at::Tensor().getIntrusivePtr()};
  at::Tensor bias_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

/// Makes products call LayerProductScope and KeptCastScope; later calls do
/// nothing.
void register_product_kernels();

}  // namespace accelerate::detail
