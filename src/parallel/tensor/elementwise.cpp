#include "parallel/tensor/elementwise.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "parallel/tensor/module_types.h"

namespace accelerate::detail {

bool is_elementwise(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  return is_one_of_types<
      nn::CELUImpl,
      nn::DropoutImpl,
      nn::ELUImpl,
      nn::GELUImpl,
      nn::HardshrinkImpl,
      nn::HardtanhImpl,
      nn::IdentityImpl,
      nn::LeakyReLUImpl,
      nn::LogSigmoidImpl,
      nn::MishImpl,
      nn::ReLU6Impl,
      nn::ReLUImpl,
      nn::SELUImpl,
      nn::SiLUImpl,
      nn::SigmoidImpl,
      nn::SoftplusImpl,
      nn::SoftshrinkImpl,
      nn::SoftsignImpl,
      nn::TanhImpl,
      nn::TanhshrinkImpl,
      nn::ThresholdImpl>(module);
}

}  // namespace accelerate::detail
