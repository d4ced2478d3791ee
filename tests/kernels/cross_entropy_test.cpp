#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>
#include <accelerate/fused.h>

#include "support/counted_memory.h"
#include "support/counted_operators.h"
#include "support/expect_error.h"

namespace accelerate::testing::cross_entropy_test {

namespace F = torch::nn::functional;

/// What a case computes, apart from its tensors.
struct Loss {
  LossReduction reduction = LossReduction::mean;
  double smoothing = 0;
  bool has_weights = false;
  std::int64_t ignore_index = -100;
};

/// A loss and the gradient of its logits.
struct Outcome {
  at::Tensor loss;
  at::Tensor gradient;
};

inline FusedCrossEntropyOptions options_of(
    const Loss& loss,
    const at::Tensor& weights) {
  return {
      .ignore_index = loss.ignore_index,
      .label_smoothing = loss.smoothing,
      .reduction = loss.reduction,
      .class_weights = loss.has_weights ? weights : at::Tensor()};
}

// LibTorch's loss of the same logits in the dtype of sums.
inline at::Tensor expected_loss(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const Loss& loss,
    const at::Tensor& weights) {
  const auto dtype =
      logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Reduction::Reduction reduction =
      loss.reduction == LossReduction::mean  ? at::Reduction::Mean
      : loss.reduction == LossReduction::sum ? at::Reduction::Sum
                                             : at::Reduction::None;
  return at::cross_entropy_loss(
             logits.reshape({-1, logits.size(-1)}).to(dtype),
             targets.reshape({-1}),
             loss.has_weights ? weights.to(dtype) : at::Tensor(),
             reduction,
             loss.ignore_index,
             loss.smoothing)
      .view(
          loss.reduction == LossReduction::none ? targets.sizes()
                                                : at::IntArrayRef());
}

// Runs a loss and its backward; losses of targets get different gradients.
inline Outcome run(
    const at::Tensor& logits,
    const std::function<at::Tensor(const at::Tensor&)>& compute) {
  const at::Tensor leaf = logits.detach().requires_grad_();
  const at::Tensor loss = compute(leaf);
  const at::Tensor incoming =
      (at::arange(loss.numel(), loss.options()).remainder(3) + 0.5)
          .view_as(loss);
  loss.backward(incoming);
  return {loss.detach(), leaf.grad()};
}

inline double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12
      : dtype == at::kFloat   ? 4e-6
      : dtype == at::kHalf    ? 2e-3
                              : 1e-2;
}

// `tolerance` is relative to the largest value, since gradients are differences
// of probabilities times that.
inline void expect_near(
    const at::Tensor& found,
    const at::Tensor& expected,
    double tolerance) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  if (found.numel() == 0) return;
  const at::Tensor wanted = expected.to(at::kDouble);
  const at::Tensor is_number = wanted.isfinite();
  const at::Tensor made = found.to(at::kDouble);
  EXPECT_TRUE(at::equal(
      made.masked_fill(is_number, 0).nan_to_num(),
      wanted.masked_fill(is_number, 0).nan_to_num()));
  const auto all = [&](const at::Tensor& values) {
    return values.masked_fill(is_number.logical_not(), 0);
  };
  const double largest = std::max(1.0, all(wanted).abs().max().item<double>());
  EXPECT_LE(all(made - wanted).abs().max().item<double>(), tolerance * largest);
}

inline void expect_as_libtorch(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const Loss& loss) {
  const at::Tensor weights = at::rand({logits.size(-1)}, at::kFloat) + 0.25;
  const Outcome found = run(logits, [&](const at::Tensor& leaf) {
    return fused_cross_entropy(leaf, targets, options_of(loss, weights));
  });
  const Outcome expected = run(logits, [&](const at::Tensor& leaf) {
    return expected_loss(leaf, targets, loss, weights);
  });
  EXPECT_EQ(found.loss.scalar_type(), expected.loss.scalar_type());
  EXPECT_EQ(found.gradient.scalar_type(), logits.scalar_type());
  // Losses are sums in the dtype of sums whatever the logits are.
  expect_near(
      found.loss,
      expected.loss,
      logits.scalar_type() == at::kDouble ? 1e-12 : 1e-5);
  expect_near(
      found.gradient, expected.gradient, tolerance(logits.scalar_type()));
}

inline std::vector<Loss> all_losses() {
  std::vector<Loss> losses;
  for (const auto reduction :
       {LossReduction::mean, LossReduction::sum, LossReduction::none}) {
    for (const double smoothing : {0.0, 0.1})
      for (const bool has_weights : {false, true})
        losses.push_back({reduction, smoothing, has_weights});
  }
  return losses;
}

const std::vector<at::ScalarType> kDtypes{
    at::kFloat,
    at::kDouble,
    at::kBFloat16,
    at::kHalf};

TEST(FusedCrossEntropy, IsThatOfLibTorchForEachReductionAndDtype) {
  torch::manual_seed(1);
  for (const at::ScalarType dtype : kDtypes) {
    for (const Loss& loss : all_losses()) {
      SCOPED_TRACE(c10::toString(dtype));
      const at::Tensor logits = at::randn({3, 5, 11}).mul_(3).to(dtype);
      const at::Tensor targets = at::randint(11, {3, 5}, at::kLong);
      targets[1][2] = -100;
      targets[0][0] = -100;
      expect_as_libtorch(logits, targets, loss);
    }
  }
}

TEST(FusedCrossEntropy, IsThatOfLibTorchForEachSize) {
  torch::manual_seed(2);
  for (std::int64_t size = 1; size <= 40; ++size) {
    SCOPED_TRACE(size);
    const at::ScalarType dtype = kDtypes[static_cast<std::size_t>(size % 4)];
    const std::int64_t rows = 41 - size;
    expect_as_libtorch(
        at::randn({rows, size}).mul_(2).to(dtype),
        at::randint(size, {rows}, at::kLong),
        {LossReduction::mean, size % 3 == 0 ? 0.2 : 0});
  }
}

// Blocks of rows: several, with a shorter last one.
TEST(FusedCrossEntropy, IsThatOfLibTorchForManyRows) {
  torch::manual_seed(3);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor targets = at::randint(40000, {8}, at::kLong);
    expect_as_libtorch(at::randn({8, 40000}).to(dtype), targets, {});
    expect_as_libtorch(
        at::randn({5000, 60}).to(dtype),
        at::randint(60, {5000}, at::kLong),
        {LossReduction::none, 0.1, true});
  }
}

TEST(FusedCrossEntropy, TakesStridedLogitsAndTargets) {
  torch::manual_seed(4);
  const at::Tensor targets = at::randint(7, {6, 5}, at::kLong).t();
  expect_as_libtorch(at::randn({7, 6, 5}).permute({2, 1, 0}), targets, {});
  expect_as_libtorch(at::randn({5, 6, 9}).narrow(2, 1, 7), targets, {});
  expect_as_libtorch(at::randn({5, 1, 7}).expand({5, 6, 7}), targets, {});
}

TEST(FusedCrossEntropy, IgnoresTargetsWhereverTheyAre) {
  torch::manual_seed(5);
  for (const Loss& base : all_losses()) {
    for (const std::int64_t ignored : {-100L, 0L, 3L, 4L, 77L}) {
      for (std::int64_t place = 0; place < 4; ++place) {
        Loss loss = base;
        loss.ignore_index = ignored;
        const at::Tensor targets = at::randint(5, {4}, at::kLong);
        targets[place] = ignored;
        expect_as_libtorch(at::randn({4, 5}), targets, loss);
      }
    }
  }
}

TEST(FusedCrossEntropy, OfOnlyIgnoredTargetsHasNoGradient) {
  for (const Loss& loss : all_losses()) {
    const at::Tensor targets = at::full({4}, -100, at::kLong);
    const Outcome found = run(at::randn({4, 5}), [&](const at::Tensor& leaf) {
      return fused_cross_entropy(
          leaf, targets, options_of(loss, at::ones({5})));
    });
    EXPECT_TRUE(found.gradient.eq(0).all().item<bool>()) << found.gradient;
    if (loss.reduction == LossReduction::mean) {
      EXPECT_TRUE(std::isnan(found.loss.item<float>()));
    } else {
      EXPECT_TRUE(found.loss.eq(0).all().item<bool>());
    }
  }
}

TEST(FusedCrossEntropy, OfNoRowsIsThatOfLibTorch) {
  const at::Tensor targets = at::empty({0}, at::kLong);
  for (const Loss& loss : all_losses())
    expect_as_libtorch(at::empty({0, 5}), targets, loss);
}

TEST(FusedCrossEntropy, OfInfiniteLogitsIsThatOfLibTorch) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const at::Tensor targets = at::tensor({0, 1, 2, 0}, at::kLong);
  const at::Tensor logits = at::randn({4, 3});
  logits[0][1] = -kInfinity;  // masked class
  logits[1][1] = -kInfinity;  // masked target
  logits[2].fill_(-kInfinity);
  logits[3][1] = std::nanf("");
  expect_as_libtorch(logits, targets, {LossReduction::none});
  // Rows that do not count get no gradient whatever their logits are.
  const at::Tensor ignored = at::tensor({0, -100, -100, -100}, at::kLong);
  const Outcome found = run(logits, [&](const at::Tensor& leaf) {
    return fused_cross_entropy(leaf, ignored);
  });
  EXPECT_TRUE(found.gradient.narrow(0, 1, 3).eq(0).all().item<bool>());
  EXPECT_TRUE(std::isfinite(found.loss.item<float>()));
}

// Central differences in fp64 of every logit.
TEST(FusedCrossEntropy, HasTheGradientOfItsDifferences) {
  torch::manual_seed(6);
  const at::Tensor logits = at::randn({4, 6}, at::kDouble);
  const at::Tensor targets = at::tensor({5, 0, -100, 3}, at::kLong);
  const at::Tensor weights = at::rand({6}, at::kDouble) + 0.5;
  for (const Loss& loss : all_losses()) {
    const auto compute = [&](const at::Tensor& at_logits) {
      return fused_cross_entropy(at_logits, targets, options_of(loss, weights));
    };
    const Outcome found = run(logits, compute);
    const auto weighted = [&](const at::Tensor& at_logits) {
      const at::Tensor made = compute(at_logits);
      return (made.flatten() *
              (at::arange(made.numel(), made.options()).remainder(3) + 0.5))
          .sum()
          .item<double>();
    };
    constexpr double kStep = 1e-5;
    for (std::int64_t i = 0; i < logits.numel(); ++i) {
      const auto shifted = [&](double by) {
        at::Tensor copy = logits.clone();
        copy.view(-1)[i] += by;
        return weighted(copy);
      };
      const double expected = (shifted(kStep) - shifted(-kStep)) / (2 * kStep);
      EXPECT_NEAR(found.gradient.view(-1)[i].item<double>(), expected, 1e-8);
    }
  }
}

TEST(FusedCrossEntropy, WritesTheGradientOverTheLogitsIfAllowed) {
  torch::manual_seed(7);
  const at::Tensor weight = at::randn({40, 8}).requires_grad_();
  const at::Tensor hidden = at::randn({6, 8});
  const at::Tensor targets = at::randint(40, {6}, at::kLong);
  const auto gradient = [&](bool overwrites) {
    const at::Tensor logits = at::linear(hidden, weight);
    const void* const memory = logits.const_data_ptr();
    logits.register_hook([&, memory](const at::Tensor& made) {
      EXPECT_EQ(made.const_data_ptr() == memory, overwrites);
    });
    const at::Tensor loss =
        fused_cross_entropy(logits, targets, {.overwrite_logits = overwrites});
    const at::Tensor found =
        torch::autograd::grad({loss}, {weight}, {}, /*retain_graph=*/true)[0];
    if (overwrites) {
      // Nobody gets the gradient of a gradient.
      EXPECT_THROW((void)torch::autograd::grad({loss}, {weight}), c10::Error);
    }
    return found;
  };
  EXPECT_TRUE(at::equal(gradient(true), gradient(false)));
}

TEST(FusedCrossEntropy, RefusesToBeDifferentiatedTwiceByName) {
  const at::Tensor logits = at::randn({3, 4}).requires_grad_();
  const at::Tensor targets = at::tensor({0, 1, 2}, at::kLong);
  const at::Tensor loss = fused_cross_entropy(logits, targets);
  const at::Tensor gradient =
      torch::autograd::grad({loss}, {logits}, {}, true, true)[0];
  expect_error<ConfigError>(
      [&] { gradient.square().sum().backward(); },
      "the gradients of fused_cross_entropy() must be differentiated no "
      "further");
}

TEST(FusedCrossEntropy, IsInFp32UnderAutocast) {
  const at::Tensor logits = at::randn({3, 4}).to(at::kBFloat16);
  const at::Tensor targets = at::tensor({0, 1, 2}, at::kLong);
  const at::Tensor expected = fused_cross_entropy(logits, targets);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor found = fused_cross_entropy(logits, targets);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(found, expected));
}

TEST(FusedCrossEntropy, NeedsNoMemoryBesideTheGradient) {
  const at::Tensor logits =
      at::randn({64, 20000}).to(at::kBFloat16).requires_grad_();
  const at::Tensor targets = at::randint(20000, {64}, at::kLong);
  const auto peak = [](const at::Tensor& leaf, const auto& compute) {
    const CountedMemory memory;
    (void)torch::autograd::grad({compute(leaf)}, {leaf});
    return memory.peak();
  };
  const auto size = static_cast<std::int64_t>(logits.nbytes());
  // A block of rows in fp32.
  constexpr std::int64_t kBlock = 1 << 20;
  EXPECT_GT(
      peak(
          logits,
          [&](const at::Tensor& leaf) {
            return expected_loss(leaf, targets, {}, {});
          }),
      6 * size);
  EXPECT_LT(
      peak(
          logits,
          [&](const at::Tensor& leaf) {
            return fused_cross_entropy(leaf, targets);
          }),
      size + kBlock);
  EXPECT_LT(
      peak(
          logits.detach().clone().requires_grad_(),
          [&](const at::Tensor& leaf) {
            return fused_cross_entropy(
                leaf, targets, {.overwrite_logits = true});
          }),
      kBlock);
}

TEST(FusedCrossEntropy, SaysWhatDoesNotFit) {
  const at::Tensor logits = at::randn({2, 3});
  const at::Tensor targets = at::tensor({0, 1}, at::kLong);
  const auto expect = [&](const at::Tensor& given_logits,
                          const at::Tensor& given_targets,
                          const FusedCrossEntropyOptions& options,
                          const std::string& phrase) {
    expect_error<ConfigError>(
        [&] {
          (void)fused_cross_entropy(given_logits, given_targets, options);
        },
        phrase);
  };
  expect({}, targets, {}, "fused_cross_entropy(): logits must be defined");
  expect(
      logits.to(at::kInt),
      targets,
      {},
      "logits must be fp64, fp32, bf16 or fp16, but is Int");
  expect(at::randn({}), targets, {}, "logits must have a dimension of classes");
  expect(
      at::randn({2, 0}), targets, {}, "logits must have classes, but has none");
  expect(
      logits,
      targets.to(at::kInt),
      {},
      "targets must be numbers of classes in int64, but is Int");
  expect(logits, {}, {}, "targets must be defined");
  expect(
      logits,
      at::zeros({3}, at::kLong),
      {},
      "targets must have shape [2], but is of shape [3]");
  expect(
      logits,
      at::tensor({0, 3}, at::kLong),
      {},
      "targets must be from 0 to 2, or ignore_index, but one is 3");
  expect(
      logits,
      at::empty({2}, at::TensorOptions(at::kMeta).dtype(at::kLong)),
      {},
      "targets must be on cpu, but is on meta");
  expect(
      logits,
      targets,
      {.label_smoothing = 1.5},
      "label_smoothing must be from 0 to 1, but is 1.5");
  expect(
      logits,
      targets,
      {.label_smoothing = std::nan("")},
      "label_smoothing must be from 0 to 1, but is nan");
  expect(
      logits,
      targets,
      {.class_weights = at::ones({2})},
      "class_weights must have shape [3], but is of shape [2]");
  expect(
      logits.t().contiguous().t(),
      targets,
      {.overwrite_logits = true},
      "logits must be contiguous if overwrite_logits is set");
}

/// A linear layer before a loss.
struct Layer {
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor targets;

  static Layer random(
      at::ScalarType dtype,
      std::int64_t rows,
      std::int64_t features,
      std::int64_t classes,
      bool has_bias) {
    Layer made;
    made.hidden = at::randn({rows, features}).to(dtype).requires_grad_();
    made.weight = at::randn({classes, features}).to(dtype).requires_grad_();
    if (has_bias) made.bias = at::randn({classes}).to(dtype).requires_grad_();
    made.targets = at::randint(classes, {rows}, at::kLong);
    if (rows > 2) made.targets[1] = -100;
    return made;
  }

  [[nodiscard]] std::vector<at::Tensor> gradients(
      const at::Tensor& loss) const {
    std::vector<at::Tensor> inputs{hidden, weight};
    if (bias.defined()) inputs.push_back(bias);
    return torch::autograd::grad({loss * 3}, inputs);
  }
  [[nodiscard]] at::Tensor fused(
      const Loss& loss,
      const at::Tensor& weights,
      std::int64_t chunk_size) const {
    return fused_linear_cross_entropy(
        hidden,
        weight,
        targets,
        {.label_smoothing = loss.smoothing,
         .reduction = loss.reduction,
         .class_weights = loss.has_weights ? weights : at::Tensor(),
         .bias = bias,
         .chunk_size = chunk_size});
  }
};

TEST(FusedLinearCrossEntropy, IsThatOfLibTorchForEachChunkSize) {
  torch::manual_seed(8);
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t chunk_size : {0, 1, 3, 7, 8}) {
      for (const Loss& loss : all_losses()) {
        if (loss.reduction == LossReduction::none) continue;
        const Layer layer = Layer::random(dtype, 7, 5, 13, chunk_size != 3);
        const at::Tensor weights = at::rand({13}) + 0.5;
        const at::Tensor found = layer.fused(loss, weights, chunk_size);
        const at::Tensor expected = expected_loss(
            at::linear(layer.hidden, layer.weight, layer.bias),
            layer.targets,
            loss,
            weights);
        const double near = tolerance(dtype) * (dtype == at::kFloat ? 10 : 2);
        expect_near(found.detach(), expected.detach(), near);
        const auto made = layer.gradients(found);
        const auto wanted = layer.gradients(expected);
        for (std::size_t i = 0; i < made.size(); ++i) {
          EXPECT_EQ(made[i].scalar_type(), dtype);
          expect_near(made[i], wanted[i], near * 3);
        }
      }
    }
  }
}

TEST(FusedLinearCrossEntropy, ComputesInAutocastsDtypeAndKeepsFp32Gradients) {
  torch::manual_seed(9);
  const Layer layer = Layer::random(at::kFloat, 9, 16, 24, true);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor found = layer.fused({}, {}, 4);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  const auto rounded = [](const at::Tensor& tensor) {
    return tensor.to(at::kBFloat16);
  };
  const at::Tensor expected = expected_loss(
      at::linear(
          rounded(layer.hidden), rounded(layer.weight), rounded(layer.bias)),
      layer.targets,
      {},
      {});
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  expect_near(found.detach(), expected.detach(), 1e-5);
  const auto made = layer.gradients(found);
  const auto wanted = layer.gradients(expected);
  for (std::size_t i = 0; i < made.size(); ++i) {
    EXPECT_EQ(made[i].scalar_type(), at::kFloat);
    expect_near(made[i], wanted[i], 3e-2);
  }
}

TEST(FusedLinearCrossEntropy, HasTheGradientsOfItsDifferences) {
  torch::manual_seed(10);
  const Layer layer = Layer::random(at::kDouble, 5, 3, 6, true);
  const at::Tensor weights = at::rand({6}, at::kDouble) + 0.5;
  const Loss loss{LossReduction::mean, 0.15, true};
  const auto gradients = layer.gradients(layer.fused(loss, weights, 2));
  const std::vector<at::Tensor> inputs{layer.hidden, layer.weight, layer.bias};
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    at::Tensor values = inputs[input].detach().view(-1);
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      const auto moved = [&](double by) {
        values[i] += by;
        const auto made = 3 * layer.fused(loss, weights, 2).item<double>();
        values[i] -= by;
        return made;
      };
      EXPECT_NEAR(
          gradients[input].reshape({-1})[i].item<double>(),
          (moved(kStep) - moved(-kStep)) / (2 * kStep),
          1e-8);
    }
  }
}

TEST(FusedLinearCrossEntropy, ComputesNoGradientThatNobodyNeeds) {
  const Layer layer = Layer::random(at::kFloat, 6, 4, 5, false);
  const auto products = [&](const std::function<void()>& body) {
    const CountedOperators counted;
    body();
    return counted.of("aten::mm") + counted.of("aten::addmm_") +
        counted.of("aten::addmm");
  };
  {
    const at::NoGradGuard no_grad;
    EXPECT_EQ(products([&] { (void)layer.fused({}, {}, 6); }), 1);
  }
  EXPECT_EQ(products([&] { (void)layer.fused({}, {}, 6); }), 3);
  Layer frozen = layer;
  frozen.weight = layer.weight.detach();
  EXPECT_EQ(products([&] { (void)frozen.fused({}, {}, 6); }), 2);
  const at::Tensor gradient =
      torch::autograd::grad({frozen.fused({}, {}, 6)}, {frozen.hidden})[0];
  EXPECT_EQ(gradient.sizes(), layer.hidden.sizes());
}

TEST(FusedLinearCrossEntropy, NeverHoldsAllLogits) {
  constexpr std::int64_t kRows = 512, kFeatures = 16, kClasses = 8000;
  const Layer layer =
      Layer::random(at::kFloat, kRows, kFeatures, kClasses, false);
  const CountedMemory memory;
  const auto gradients = layer.gradients(layer.fused({}, {}, 32));
  constexpr std::int64_t kBytes = 4;
  const std::int64_t chunk = 32 * kClasses * kBytes;
  const std::int64_t own = (kRows + kClasses) * kFeatures * kBytes;
  // A sixteenth of the logits, the gradients, and one block of rows.
  EXPECT_LT(memory.peak(), chunk + own + (1 << 20));
  EXPECT_LT(memory.peak(), kRows * kClasses * kBytes / 4);
}

TEST(FusedLinearCrossEntropy, OfOnlyIgnoredTargetsHasNoGradient) {
  Layer layer = Layer::random(at::kFloat, 6, 4, 5, true);
  layer.targets.fill_(-100);
  const at::Tensor loss = layer.fused({}, {}, 4);
  EXPECT_TRUE(std::isnan(loss.item<float>()));
  for (const at::Tensor& gradient : layer.gradients(loss))
    EXPECT_TRUE(gradient.eq(0).all().item<bool>());
  layer = Layer::random(at::kFloat, 0, 4, 5, true);
  EXPECT_EQ(layer.fused({LossReduction::sum}, {}, 0).item<float>(), 0);
}

TEST(FusedLinearCrossEntropy, SaysWhatDoesNotFit) {
  const Layer layer = Layer::random(at::kFloat, 4, 3, 5, true);
  const auto expect = [&](const at::Tensor& hidden,
                          const at::Tensor& weight,
                          const FusedLinearCrossEntropyOptions& options,
                          const std::string& phrase) {
    expect_error<ConfigError>(
        [&] {
          (void)fused_linear_cross_entropy(
              hidden, weight, layer.targets, options);
        },
        phrase);
  };
  expect({}, layer.weight, {}, "hidden and weight must be defined");
  expect(
      layer.hidden,
      layer.weight.t(),
      {},
      "weight must have shape [classes, 3], but is of shape [3, 5]");
  expect(
      layer.hidden,
      layer.weight.to(at::kDouble),
      {},
      "weight must be Float, as hidden is, but is Double");
  expect(
      layer.hidden,
      layer.weight,
      {.bias = at::ones({4})},
      "bias must have shape [5], but is of shape [4]");
  expect(
      layer.hidden,
      layer.weight,
      {.reduction = LossReduction::none},
      "reduction must be mean or sum, but is none");
  expect(
      layer.hidden,
      layer.weight,
      {.chunk_size = -1},
      "chunk_size must be at least 0, but is -1");
  expect(
      layer.hidden.narrow(0, 0, 3),
      layer.weight,
      {},
      "targets must have shape [3], but is of shape [4]");
  const at::Tensor loss = layer.fused({}, {}, 0);
  loss.backward({}, /*retain_graph=*/true);
  expect_error<ConfigError>(
      [&] { loss.backward(); },
      "the result of fused_linear_cross_entropy() must have one backward, but "
      "has a second");
  const at::Tensor gradient = torch::autograd::grad(
      {layer.fused({}, {}, 0)}, {layer.hidden}, {}, true, true)[0];
  expect_error<ConfigError>(
      [&] { gradient.sum().backward(); },
      "the gradients of fused_linear_cross_entropy() must be differentiated "
      "no further");
}

}  // namespace accelerate::testing::cross_entropy_test
