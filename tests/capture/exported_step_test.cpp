// Captured steps of a program of torch.export.
#include <memory>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <accelerate/exported_model.h>
#include <gtest/gtest.h>

#include "capture/pretend_graph.h"
#include "support/pretend_device.h"
#include "train/session/session.h"

namespace accelerate::exported_step_test {

using testing::pretend_device;

// The weights after steps that are captured, or run by the same code without.
std::vector<at::Tensor> weights_after(bool captures) {
  AcceleratorOptions options;
  options.world = {.rank = 0, .size = 1, .device = pretend_device()};
  Accelerator accelerator(options);
  ExportedModel net = load_exported(ACCELERATE_EXPORTED_PROGRAM);
  torch::optim::AdamW adamw(
      net->parameters(), torch::optim::AdamWOptions(0.0625));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto step =
      [&, &model = model, &optimizer = optimizer](const at::Tensor& x) {
        const at::Tensor loss = model(x)[0].square().mean();
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        return loss;
      };
  const auto counts = std::make_shared<testing::PretendGraphCounts>();
  if (captures) {
    optimizer.prepared()->session->capture.make_graph =
        testing::pretend_graphs(counts);
  }
  const auto captured = accelerator.capture(step);
  for (int i = 0; i < 12; ++i) {
    const at::Generator generator = at::detail::createCPUGenerator(i);
    const at::Tensor x = at::randn({4, 8}, generator);
    static_cast<void>(captures ? captured(x) : step(x.to(pretend_device())));
  }
  if (captures) {
    EXPECT_EQ(captured.reason(), "");
    EXPECT_EQ(captured.counts().recorded, 1);
  }
  std::vector<at::Tensor> weights;
  for (const at::Tensor& weight : net->parameters())
    weights.push_back(weight.detach().cpu());
  return weights;
}

TEST(CapturedExportedSteps, TrainAsPlainStepsDo) {
  const auto captured = weights_after(true);
  const auto plain = weights_after(false);
  ASSERT_EQ(captured.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_TRUE(at::equal(captured[i], plain[i])) << i;
}

}  // namespace accelerate::exported_step_test
