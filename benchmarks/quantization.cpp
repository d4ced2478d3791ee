// Products with a Linear layer's weight in 8 and 4 bits, compared with the fp32
// weight, with dequantising it first, and with LibTorch's own kernels for
// packed weights; and the memory of a parameter.
#include <string>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "interleave.h"

namespace {

using accelerate::QuantizationType;
using accelerate::QuantizedWeight;
using accelerate::benchmarks::interleave;
using accelerate::benchmarks::report_interleaved;

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kColumns = 4096;
constexpr int kBlocks = 20;

void measure(
    const std::string& name,
    const torch::Tensor& weight,
    const QuantizedWeight& quantized) {
  for (const std::int64_t batch : {1, 2, 4, 8}) {
    const torch::Tensor x = torch::randn({batch, kColumns});
    report_interleaved(
        "quantization",
        name + "_over_fp32_batch_" + std::to_string(batch),
        interleave(
            kBlocks,
            5,
            [&] { return quantized.linear(x); },
            [&] { return at::linear(x, weight); }));
  }
  for (const std::int64_t batch : {1, 32, 256}) {
    const torch::Tensor x = torch::randn({batch, kColumns});
    report_interleaved(
        "quantization",
        name + "_over_dequantised_batch_" + std::to_string(batch),
        interleave(
            kBlocks / 2,
            1,
            [&] { return quantized.linear(x); },
            [&] {
              return at::linear(x, quantized.dequantize(torch::kFloat));
            }));
  }
}

// LibTorch's kernels use scales of the input's dtype, and 4 bits in steps of
// equal size instead of the values of nf4.
void measure_packed(
    const QuantizedWeight& int8,
    const QuantizedWeight& nf4,
    torch::ScalarType dtype) {
  constexpr std::int64_t kGroup = 64;
  const torch::Tensor codes =
      torch::randint(-127, 128, {kRows, kColumns}, torch::kChar);
  const torch::Tensor scales = torch::rand({kRows}).to(dtype);
  const torch::Tensor packed = at::_convert_weight_to_int4pack_for_cpu(
      torch::randint(0, 16, {kRows, kColumns}, torch::kInt), 1);
  const torch::Tensor steps =
      torch::rand({kColumns / kGroup, kRows, 2}).to(dtype);
  const std::string type = dtype == torch::kFloat ? "fp32" : "bf16";
  for (const std::int64_t batch : {1, 2, 4, 8}) {
    const torch::Tensor x = torch::randn({batch, kColumns}).to(dtype);
    const std::string suffix = "_packed_" + type + "_batch_";
    report_interleaved(
        "quantization",
        "int8_over" + suffix + std::to_string(batch),
        interleave(
            kBlocks / 2,
            1,
            [&] { return int8.linear(x); },
            [&] { return at::_weight_int8pack_mm(x, codes, scales); }));
    report_interleaved(
        "quantization",
        "nf4_over_int4" + suffix + std::to_string(batch),
        interleave(
            kBlocks / 2,
            1,
            [&] { return nf4.linear(x); },
            [&] {
              return at::_weight_int4pack_mm_for_cpu(x, packed, kGroup, steps);
            }));
  }
}

}  // namespace

int main() {
  accelerate::benchmarks::keep_freed_memory();
  const torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  const torch::Tensor weight = torch::randn({kRows, kColumns}) * 0.02;
  const QuantizedWeight int8(weight, {.type = QuantizationType::int8});
  const QuantizedWeight nf4(weight, {.type = QuantizationType::nf4});
  const QuantizedWeight nested(
      weight, {.type = QuantizationType::nf4, .double_quant = true});
  measure("int8", weight, int8);
  measure("nf4", weight, nf4);
  measure("nf4_double_quant", weight, nested);
  measure_packed(int8, nf4, torch::kFloat);
  measure_packed(int8, nf4, torch::kBFloat16);
  const double bytes = static_cast<double>(nested.num_bytes()) /
      static_cast<double>(kRows * kColumns);
  accelerate::benchmarks::report(
      {"quantization",
       "nf4_double_quant_bytes_per_parameter",
       bytes,
       "B",
       4,
       bytes / 4,
       1});
  return 0;
}
