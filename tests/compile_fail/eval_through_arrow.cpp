// Refused: passing 'const .*::ReadOnly_call_model_x_or_model_eval_or_use_model_module'
#include <torch/nn/modules/linear.h>

#include <accelerate/accelerator.h>

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input; }
  void reset() {}
};

void evaluate(const accelerate::Model<Net>& model) {
#ifdef MUST_FAIL
  model->eval();
#else
  model.eval();
  model.module()->reset();
  model.call([](Net& net) { net.reset(); });
#endif
}
