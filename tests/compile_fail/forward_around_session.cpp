// Refused: passing 'const .*::ReadOnly_call_model_x_or_model_eval_or_use_model_module'
#include <torch/nn/modules/linear.h>

#include <accelerate/accelerator.h>

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input; }
};

at::Tensor run(const accelerate::Model<Net>& model, const at::Tensor& x) {
#ifdef MUST_FAIL
  return model->forward(x);
#else
  return model(x);
#endif
}
