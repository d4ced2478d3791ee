// Files that bitsandbytes 0.50.2 wrote: {nf4, fp4, int8} of one Linear(64, 24)
// in a Sequential, and the weights as it dequantised them.
#include <torch/nn/modules.h>

#include <accelerate/quantized_model.h>
#include <accelerate/weights.h>

#include "support/temporary_directory.h"

namespace accelerate {
namespace quantize_exchange_test {

using at::Tensor;
using testing::TemporaryDirectory;
using StateDict = std::map<std::string, Tensor>;
namespace nn = torch::nn;

std::filesystem::path recorded(const std::string& name) {
  return std::filesystem::path(ACCELERATE_QUANTIZED_DATA) /
      ("bitsandbytes_" + name + ".safetensors");
}

QuantizationOptions config_for(const std::string& name) {
  QuantizationOptions config;
  config.load_in_8bit = name == "int8";
  config.load_in_4bit = name != "int8";
  config.bnb_4bit_quant_type = name == "fp4" ? "fp4" : "nf4";
  config.bnb_4bit_use_double_quant = name == "nf4";
  config.torch_dtype = "fp32";
  config.skip_modules = std::vector<std::string>{};
  return config;
}

class Exchange : public ::testing::TestWithParam<const char*> {};

TEST_P(Exchange, FilesOfBitsandbytesStandForTheSameWeights) {
  nn::Sequential model(nn::Linear(64, 24));
  const QuantizedModel quantized = load_and_quantize_model(
      *model,
      config_for(GetParam()),
      {.weights_location = recorded(GetParam())});
  const Tensor expected =
      load_state_dict(recorded("dequantized")).at(GetParam());
  const Tensor found = quantized.weight("0").dequantize(at::kFloat);
  EXPECT_LE((found - expected).abs().max().item<double>(), 1e-7);
}

TEST_P(Exchange, FilesAreWrittenAsTheyWereRead) {
  nn::Sequential model(nn::Linear(64, 24));
  const QuantizedModel quantized = load_and_quantize_model(
      *model,
      config_for(GetParam()),
      {.weights_location = recorded(GetParam())});
  const TemporaryDirectory directory;
  quantized.save_model(directory.path());
  const StateDict before = load_state_dict(recorded(GetParam()));
  const StateDict after = load_state_dict(directory.path());
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : before) {
    ASSERT_TRUE(after.contains(name)) << name;
    EXPECT_EQ(after.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(after.at(name), tensor)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Bitsandbytes,
    Exchange,
    ::testing::Values("nf4", "fp4", "int8"));

}  // namespace quantize_exchange_test
}  // namespace accelerate
