// One optimizer step over a transformer's parameters: the fused kernels of
// accelerate::optim compared with torch::optim's loops.
#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include "interleave.h"

namespace {

using namespace accelerate::benchmarks;

std::vector<torch::Tensor> make_parameters() {
  torch::manual_seed(1);
  std::vector<torch::Tensor> parameters;
  for (int layer = 0; layer < 12; ++layer) {
    for (const std::int64_t width : {64, 128, 256, 64}) {
      parameters.push_back(torch::randn({width, width}).requires_grad_());
      parameters.push_back(torch::randn({width}).requires_grad_());
    }
  }
  for (const torch::Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::randn_like(parameter);
  }
  return parameters;
}

template <class Ours, class Baseline, class Options>
void compare(const std::string& metric, const Options& options) {
  const std::vector<torch::Tensor> a = make_parameters(), b = make_parameters();
  const accelerate::Accelerator accelerator({.cpu = true});
  Ours inner(a, options);
  const auto ours = accelerator.prepare(inner);
  Baseline baseline(b, options);
  report_interleaved(
      "optimizer",
      metric,
      interleave(60, 10, [&] { ours.step(); }, [&] { baseline.step(); }));
}

}  // namespace

int main() {
  accelerate::benchmarks::keep_freed_memory();
  torch::set_num_threads(1);
  namespace ours = accelerate::optim;
  namespace base = torch::optim;
  compare<ours::AdamW, base::AdamW>("adamw_us", base::AdamWOptions(1e-3));
  compare<ours::Adam, base::Adam>("adam_us", base::AdamOptions(1e-3));
  compare<ours::SGD, base::SGD>(
      "sgd_momentum_us", base::SGDOptions(1e-3).momentum(0.9));
  compare<ours::Adagrad, base::Adagrad>(
      "adagrad_us", base::AdagradOptions(1e-3));
  return 0;
}
