#pragma once

#include <memory>

#include <accelerate/accelerator.h>
#include <accelerate/export.h>

namespace accelerate {

struct LocalSGDOptions {
  /// Number of optimizer steps between two averages, at least 1. More steps
  /// communicate less, but ranks' weights drift further apart.
  int local_sgd_steps = 1;
  /// If false, gradients are averaged in every step, as without LocalSGD.
  bool enabled = true;
};

/// Lets every rank train by itself and averages the weights, not the gradients,
/// every few steps (Stich, Local SGD Converges Fast and Communicates Little):
/// less communication, different results.
///
///     LocalSGD local(accelerator, model, {.local_sgd_steps = 8});
///     for (auto& [x, y] : loader) { …; optimizer.step(); local.step(); }
///     local.finish();
///
/// While it lives and is enabled, gradients of the model are not averaged,
/// except among ranks that share sequences (ParallelOptions::context), which
/// take the same steps and average in every one. A single replica has nothing
/// to average. `step` and `finish` are collective. Throws ConfigError if the
/// model is sharded, or would be on several ranks.
class ACCELERATE_API LocalSGD {
 public:
  template <class M>
  LocalSGD(
      const Accelerator& accelerator,
      const Model<M>& model,
      const LocalSGDOptions& options)
      : LocalSGD(accelerator, model.prepared(), options) {}
  /// Ends the scope without averaging, for a loop that threw.
  ~LocalSGD();
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  /// Averages the weights if due. Call it after each optimizer step.
  void step();
  /// Averages the weights once more, and resumes averaging gradients.
  void finish();

 private:
  LocalSGD(
      const Accelerator& accelerator,
      std::shared_ptr<detail::PreparedModel> model,
      const LocalSGDOptions& options);
  void average();
  void end();

  std::shared_ptr<detail::PreparedModel> model_;
  bool is_active_ = false;
  bool before_ = true;
  int local_sgd_steps_;
  int num_steps_ = 0;
};

}  // namespace accelerate
