#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/quantize.h>

#include "big_model/quantize/quantized_product.h"
#include "gate/coded_weights.h"
#include "gate/gate.h"

namespace accelerate::detail {

/// Holds quantised weights in place of modules' parameters.
class QuantizedWeightKeeper final : public CodedWeightKeeper {
 public:
  /// `kind` is how inputs are multiplied by the weights.
  explicit QuantizedWeightKeeper(ProductKind kind) : kind_(kind) {}

  /// Takes a parameter's memory, if it has any, and uses `weight`, which has
  /// the same shape, in its place. `name` is its layer's.
  void
  keep(std::string name, const at::Tensor& parameter, QuantizedWeight weight);

  [[nodiscard]] std::size_t size() const { return kept_.size(); }
  [[nodiscard]] const std::string& name(std::size_t unit) const {
    return kept_[unit].name;
  }
  [[nodiscard]] const QuantizedWeight& weight(std::size_t unit) const {
    return kept_[unit].weight;
  }
  /// The number of a kept parameter; nothing for other tensors, or if the
  /// parameter's data has been replaced since.
  [[nodiscard]] std::optional<std::size_t> find(const at::Tensor& tensor) const;

  /// Products use the codes, views stay views, and every other operator
  /// receives dequantised values. Throws ConfigError for an operator that would
  /// change a weight.
  void call(GatedCall& call) override;
  [[nodiscard]] std::size_t num_places() const override { return 1; }

  [[nodiscard]] std::vector<CodeTensor> code_tensors(
      std::size_t unit) const override;
  void move(std::size_t unit, c10::Device device) override;
  std::vector<at::Tensor> take_tensors(std::size_t unit, c10::Device device)
      override;

 private:
  struct Kept {
    std::string name;
    QuantizedWeight weight;
    std::unique_ptr<GatedTensor> gate;
  };

  /// What a tensor is multiplied by: a kept matrix or its transpose.
  struct Operand {
    std::size_t unit = 0;
    bool is_transposed = false;
  };

  [[nodiscard]] std::unique_ptr<GatedTensor> make_gate(
      std::size_t unit,
      const std::string& name,
      const at::Tensor& parameter,
      c10::Device device);
  void set_device(std::size_t unit, c10::Device device);
  [[nodiscard]] std::optional<Operand> operand(const c10::IValue& value) const;
  [[nodiscard]] at::Tensor product(
      const at::Tensor& input,
      const Operand& operand,
      const at::Tensor& bias) const;
  [[nodiscard]] std::optional<at::Tensor> product_for(GatedCall& call) const;
  [[nodiscard]] c10::IValue dequantized(const c10::IValue& value) const;
  void require_unchanged(GatedCall& call) const;

  ProductKind kind_;
  std::vector<Kept> kept_;
};

}  // namespace accelerate::detail
