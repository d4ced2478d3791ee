#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <accelerate/export.h>
#include <accelerate/weights.h>

/// Weights in 8 or 4 bits, for models that do not fit otherwise: half a byte to
/// one byte per parameter.
namespace accelerate {

/// How values are stored.
enum class QuantizationType {
  /// Rows of int8, each with the absolute maximum that 127 stands for
  /// (LLM.int8(), Dettmers et al. 2022).
  int8,
  /// Blocks of 4-bit NormalFloat codes, each with its absolute maximum (QLoRA,
  /// Dettmers et al. 2023).
  nf4,
  /// Blocks of 4-bit float codes.
  fp4,
};

struct QuantizeWeightOptions {
  /// The codes. int8 takes about one byte per parameter, and is the most
  /// accurate; of the others, nf4 suits normally distributed weights.
  QuantizationType type = QuantizationType::nf4;
  /// Elements that share a scale of 4 bytes, in 4 bits; any number. Smaller:
  /// more accurate, more memory. Powers of two from 32 on that divide the rows
  /// are fastest. bitsandbytes reads 32, 64, ..., 4096.
  std::int64_t block_size = 64;
  /// Stores the scales of 4-bit blocks in 8 bits as well, which rounds them:
  /// with blocks of 64, 0.516 bytes per parameter instead of 0.5625.
  bool double_quant = false;
};

namespace detail {

class QuantizedWeightKeeper;

/// The tensors of a quantised weight.
struct QuantizedParts {
  at::Tensor codes;               ///< int8 [rows, columns], or uint8 [bytes, 1]
  at::Tensor absmax;              ///< float32 per row or block; uint8 if nested
  at::Tensor code_values = {};    ///< float32 [16]
  at::Tensor nested_absmax = {};  ///< float32 per 256 scales
  at::Tensor nested_code_values = {};  ///< float32 [256]
  double nested_offset = 0;
};

}  // namespace detail

/// A weight in 8 or 4 bits with everything needed to multiply by it. Copies
/// share their tensors, which do not change.
class ACCELERATE_API QuantizedWeight {
 public:
  /// Quantises values in fp32, fp16 or bf16, of any layout and device; int8
  /// takes matrices, and rounds them to fp16 first, as bitsandbytes does.
  /// Throws ConfigError for another dtype or shape, a block size below 1, and
  /// values that are not finite.
  explicit QuantizedWeight(
      const at::Tensor& weight,
      const QuantizeWeightOptions& options = {});
  // Moving copies, which shares the tensors, so a moved-from weight stays
  // valid.
  QuantizedWeight(const QuantizedWeight&) = default;
  QuantizedWeight& operator=(const QuantizedWeight&) = default;
  ~QuantizedWeight() = default;

  /// The codes that it is kept in.
  [[nodiscard]] QuantizationType type() const { return type_; }
  /// The shape of the weight, not that of its codes.
  [[nodiscard]] at::IntArrayRef sizes() const { return sizes_; }
  /// The dtype of the values that were quantised.
  [[nodiscard]] c10::ScalarType dtype() const { return dtype_; }
  /// Elements that share a scale.
  [[nodiscard]] std::int64_t block_size() const { return block_size_; }
  /// Whether its scales are quantised as well.
  [[nodiscard]] bool is_double_quantized() const {
    return parts_.nested_absmax.defined();
  }
  /// Where its codes are.
  [[nodiscard]] c10::Device device() const { return parts_.codes.device(); }
  /// Bytes of all its tensors.
  [[nodiscard]] std::int64_t num_bytes() const;

  /// The values that the codes stand for, in dtype() or another one.
  [[nodiscard]] at::Tensor dequantize(
      std::optional<c10::ScalarType> dtype = std::nullopt) const;

  /// input * weight^T + bias for a matrix, in the input's dtype, computed in
  /// fp32 on the CPU. Gradients reach the input and the bias. Results do not
  /// depend on the number of threads.
  [[nodiscard]] at::Tensor linear(
      const at::Tensor& input,
      const at::Tensor& bias = {}) const;

  /// The tensors under the names that bitsandbytes gives them in a module with
  /// the parameter "weight": for 4 bits weight, weight.absmax,
  /// weight.quant_map, weight.nested_absmax, weight.nested_quant_map and
  /// weight.quant_state.bitsandbytes__nf4; for int8 weight, SCB and
  /// weight_format. Moving them moves the weight.
  [[nodiscard]] WeightList tensors() const;
  /// The inverse of tensors(). Throws CheckpointError naming what is missing or
  /// does not fit.
  static QuantizedWeight from_tensors(
      const std::map<std::string, at::Tensor>& tensors);
  /// A copy on another device; the same tensors if it is there already.
  [[nodiscard]] QuantizedWeight to(c10::Device device) const;

  [[nodiscard]] const detail::QuantizedParts& parts() const { return parts_; }

 private:
  friend class detail::QuantizedWeightKeeper;
  QuantizedWeight() = default;

  QuantizationType type_ = QuantizationType::nf4;
  std::vector<std::int64_t> sizes_;
  c10::ScalarType dtype_ = c10::ScalarType::Float;
  std::int64_t block_size_ = 0;
  detail::QuantizedParts parts_;
};

/// LLM.int8() itself, for comparison with programs that quantise inputs as
/// well: rows of the input become int8, except for the columns in which a value
/// reaches `threshold`, which are multiplied in full precision; 0: no
/// threshold. QuantizedWeight::linear() keeps all of the input in full
/// precision, which is more accurate and as fast on CPUs. Gradients reach input
/// and bias as with linear(). Throws ConfigError for a weight that is not int8.
[[nodiscard]] ACCELERATE_API at::Tensor llm_int8_linear(
    const at::Tensor& input,
    const QuantizedWeight& weight,
    double threshold = 6.0,
    const at::Tensor& bias = {});

}  // namespace accelerate
