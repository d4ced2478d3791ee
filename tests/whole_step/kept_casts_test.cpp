// Casts of weights that autocast makes once per window.
#include <functional>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/accelerate.h>

#include "whole_step/counted_casts.h"

namespace accelerate {
namespace kept_casts_test {

using testing::CountedCasts;
using torch::Tensor;

// Every way in which layers take weights; no two have the same size.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    convolution = register_module("convolution", torch::nn::Conv2d(1, 3, 2));
    product = register_module("product", torch::nn::Linear(12, 5));
    plain = register_module(
        "plain", torch::nn::Linear(torch::nn::LinearOptions(5, 7).bias(false)));
    last = register_module("last", torch::nn::Linear(14, 4));
    free = register_parameter("free", torch::randn({4, 9}));
  }
  Tensor segment(const Tensor& x) { return plain(torch::relu(product(x))); }
  Tensor forward(const Tensor& images) {
    const Tensor features = convolution(images).reshape({-1, 3, 12});
    const Tensor x = recomputes ? checkpoint([&] { return segment(features); })
                                : segment(features);
    const Tensor rows = last(x.reshape({x.size(0), -1}).slice(1, 0, 14));
    return torch::mm(rows, free);
  }
  torch::nn::Conv2d convolution = nullptr;
  torch::nn::Linear product = nullptr, plain = nullptr, last = nullptr;
  Tensor free;
  bool recomputes = false;
};
TORCH_MODULE(Net);

Tensor images() {
  return torch::linspace(-1, 1, 2 * 5 * 4).reshape({2, 1, 5, 4});
}

// A program of one rank with windows of three micro-steps.
class Program {
 public:
  explicit Program(bool keeps_casts, bool recomputes = false)
      : accelerator_(
            {.mixed_precision = Precision::bf16,
             .gradient_accumulation_steps = 3,
             .keep_casts = keeps_casts,
             .cpu = true}) {
    torch::manual_seed(1);
    net = Net();
    net->recomputes = recomputes;
    sgd_.emplace(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator_.prepare(net, *sgd_);
    model_.emplace(std::move(model));
    optimizer_.emplace(std::move(optimizer));
  }

  void micro_step() {
    const auto window = accelerator_.accumulate(*model_);
    train();
    optimizer_->step();
    optimizer_->zero_grad();
  }
  void without_step(const std::function<void()>& run) {
    const auto window = accelerator_.accumulate(*model_);
    run();
  }
  void train() {
    Tensor output = (*model_)(images());
    outputs.push_back(output.detach().clone());
    accelerator_.backward(output.square().mean());
    for (const Tensor& parameter : net->parameters()) {
      if (parameter.grad().defined())
        outputs.push_back(parameter.grad().clone());
    }
  }
  void evaluate() {
    const at::NoGradGuard no_grad;
    outputs.push_back((*model_)(images()).clone());
  }
  void infer() {
    const c10::InferenceMode inference;
    const Tensor output = (*model_)(images());
    inferred.push_back(output.clone());
  }

  Net net = nullptr;
  std::vector<Tensor> outputs, inferred;

 private:
  Accelerator accelerator_;
  std::optional<torch::optim::SGD> sgd_;
  std::optional<Model<NetImpl>> model_;
  std::optional<Optimizer> optimizer_;
};

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(a[i].equal(b[i])) << "number " << i;
}

TEST(KeptCasts, AreMadeOncePerWindow) {
  for (const bool recomputes : {false, true}) {
    SCOPED_TRACE(recomputes ? "recomputed" : "kept");
    for (const bool keeps_casts : {false, true}) {
      Program program(keeps_casts, recomputes);
      for (int i = 0; i < 3; ++i) program.micro_step();
      const CountedCasts casts;
      for (int i = 0; i < 3; ++i) program.micro_step();
      for (const auto& parameter : program.net->named_parameters()) {
        if (!keeps_casts && recomputes) continue;
        EXPECT_EQ(casts.of(parameter->numel(), at::kFloat), keeps_casts ? 1 : 3)
            << parameter.key();
      }
    }
  }
}

TEST(KeptCasts, ChangeNoNumber) {
  for (const bool recomputes : {false, true}) {
    SCOPED_TRACE(recomputes ? "recomputed" : "kept");
    Program kept(true, recomputes), anew(false, recomputes);
    for (int i = 0; i < 7; ++i) {
      kept.micro_step();
      anew.micro_step();
    }
    expect_equal(kept.outputs, anew.outputs);
  }
}

TEST(KeptCasts, EndWithTheirWindow) {
  Program program(true);
  for (int i = 0; i < 3; ++i) program.micro_step();
  // LibTorch does not track these changes.
  for (int i = 0; i < 2; ++i) {
    const CountedCasts casts;
    program.evaluate();
    EXPECT_EQ(casts.of(program.net->last->weight.numel(), at::kFloat), 1);
    program.net->last->weight.data().zero_();
    program.net->last->bias.data().zero_();
    program.evaluate();
    EXPECT_EQ(program.outputs.back().abs().max().item<float>(), 0);
  }
}

TEST(KeptCasts, AreMadeAnewWhenTheyNoLongerFit) {
  const std::vector<std::function<void(Program&)>> changes{
      [](Program& program) {
        const at::NoGradGuard no_grad;
        program.net->plain->weight.mul_(0.5);
        program.net->convolution->bias.add_(1);
      },
      [](Program& program) {
        program.net->last->weight.set_data(
            torch::full_like(program.net->last->weight, 0.25));
      },
      [](Program& program) { program.evaluate(); },
      [](Program& program) { program.infer(); },
      [](Program& program) {
        program.net->product->weight.requires_grad_(false);
        program.train();
        program.net->product->weight.requires_grad_(true);
      }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    for (const bool is_first : {false, true}) {
      Program kept(true), anew(false);
      for (Program* const program : {&kept, &anew}) {
        program->without_step([&] {
          if (!is_first) program->train();
          changes[i](*program);
          program->train();
          program->train();
        });
      }
      expect_equal(kept.outputs, anew.outputs);
      expect_equal(kept.inferred, anew.inferred);
    }
  }
}

// Random programs that train, evaluate and change weights equal those that
// cast anew.
TEST(KeptCasts, ServeAnyProgram) {
  EXPECT_TRUE(rc::check([] {
    const auto actions =
        *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 7));
    Program kept(true), anew(false);
    for (Program* const program : {&kept, &anew}) {
      for (const int action : actions) {
        switch (action) {
          case 0:
          case 1:
            program->micro_step();
            break;
          case 2:
            program->evaluate();
            break;
          case 3:
            program->infer();
            break;
          case 4: {
            const at::NoGradGuard no_grad;
            program->net->free.mul_(0.5);
            program->net->product->bias.add_(0.5);
            break;
          }
          case 5: {
            Tensor& weight = program->net->last->weight;
            weight.requires_grad_(!weight.requires_grad());
            break;
          }
          default:
            program->without_step([&] { program->train(); });
        }
      }
    }
    RC_ASSERT(kept.outputs.size() == anew.outputs.size());
    for (std::size_t i = 0; i < kept.outputs.size(); ++i)
      RC_ASSERT(kept.outputs[i].equal(anew.outputs[i]));
  }));
}

// A module that uses its weight in ways that kept casts and products with bias
// must not serve.
struct DetachingImpl : torch::nn::Module {
  DetachingImpl() {
    weight = register_parameter("weight", torch::randn({3, 5}));
    bias = register_parameter("bias", torch::randn({3}));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = torch::matmul(x, weight.detach().t());
    return y.add_(bias) + torch::mm(torch::ones({1, 5}), weight.detach().t());
  }
  Tensor weight, bias;
};
TORCH_MODULE(Detaching);

TEST(KeptCasts, GiveDetachedWeightsNoGradient) {
  for (const Precision precision : {Precision::no, Precision::bf16}) {
    const Accelerator accelerator(
        {.mixed_precision = precision,
         .gradient_accumulation_steps = 2,
         .cpu = true});
    Detaching net;
    const auto model = accelerator.prepare(net);
    for (int i = 0; i < 2; ++i) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(model(torch::ones({2, 4, 5})).sum());
    }
    EXPECT_FALSE(net->weight.grad().defined());
    EXPECT_TRUE(net->bias.grad().defined());
  }
}

// Each takes and returns images of volumes; no two weights have the same size.
struct ConvolutionsImpl : torch::nn::Module {
  ConvolutionsImpl() {
    one = register_module("one", torch::nn::Conv1d(2, 3, 2));
    three = register_module("three", torch::nn::Conv3d(2, 5, 2));
    back_one = register_module("back_one", torch::nn::ConvTranspose1d(2, 7, 2));
    back_two = register_module("back_two", torch::nn::ConvTranspose2d(2, 3, 3));
    back_three =
        register_module("back_three", torch::nn::ConvTranspose3d(2, 3, 3));
  }
  Tensor forward(const Tensor& x) {
    const Tensor line = x.reshape({1, 2, -1});
    const Tensor image = x.reshape({1, 2, 4, -1});
    return one(line).sum() + three(x).square().sum() + back_one(line).sum() +
        back_two(image).square().sum() + back_three(x).square().sum();
  }
  torch::nn::Conv1d one = nullptr;
  torch::nn::Conv3d three = nullptr;
  torch::nn::ConvTranspose1d back_one = nullptr;
  torch::nn::ConvTranspose2d back_two = nullptr;
  torch::nn::ConvTranspose3d back_three = nullptr;
};
TORCH_MODULE(Convolutions);

TEST(KeptCasts, ServeEveryConvolutionOfTwoModels) {
  struct Result {
    std::vector<Tensor> gradients;
    std::vector<int> casts;
  };
  const auto run = [](bool keeps_casts) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::bf16,
         .gradient_accumulation_steps = 3,
         .keep_casts = keeps_casts,
         .cpu = true});
    torch::manual_seed(2);
    Convolutions first, second;
    auto [a, b] = accelerator.prepare(first, second);
    const Tensor x = torch::linspace(-1, 1, 2 * 27).reshape({1, 2, 3, 3, 3});
    const Tensor padded =
        torch::constant_pad_nd(x, {0, 1, 0, 1, 0, 1}).contiguous();
    Result result;
    const CountedCasts casts;
    for (int i = 0; i < 3; ++i) {
      const auto window = accelerator.accumulate(a, b);
      accelerator.backward(a(padded) + b(padded * 0.5));
    }
    for (const auto& net : {first, second}) {
      for (const Tensor& parameter : net->parameters())
        result.gradients.push_back(parameter.grad().clone());
    }
    for (const auto& parameter : first->named_parameters()) {
      if (parameter.key().ends_with("weight"))
        result.casts.push_back(casts.of(parameter->numel(), at::kFloat));
    }
    return result;
  };
  const Result kept = run(true), anew = run(false);
  expect_equal(kept.gradients, anew.gradients);
  EXPECT_EQ(kept.casts, std::vector<int>(5, 2));
  EXPECT_EQ(anew.casts, std::vector<int>(5, 6));
}

}  // namespace kept_casts_test
}  // namespace accelerate
