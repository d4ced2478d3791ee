#pragma once

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

namespace accelerate::optim {

/// The options of a FusedBackwardOptimizer, whose classes keep their own:
/// LibTorch's schedules ask every optimizer's options for a learning rate.
struct RateOptions : torch::optim::OptimizerCloneableOptions<RateOptions> {
  RateOptions() = default;
  // torch::optim::serialize needs this constructor.
  explicit RateOptions(double rate) : lr(rate) {}
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("lr", c10::IValue(lr));
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("lr", value);
    lr = value.toDouble();
  }
  double get_lr() const override { return lr; }
  void set_lr(double rate) override { lr = rate; }
  double lr = 0;
};

}  // namespace accelerate::optim
