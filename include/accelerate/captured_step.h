#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/detail/nested_parts.h>
#include <accelerate/export.h>
#include <accelerate/visit_tensors.h>

namespace accelerate {

/// Options of Accelerator::capture().
struct CaptureOptions {
  /// Calls of each kind (shapes of the inputs, place in a window) that run
  /// plainly before one is recorded; at least 1. In the first calls, LibTorch's
  /// libraries choose algorithms and allocate, and optimizers create their
  /// state. Raise it if reason() says that state was missing when recording.
  int warmup_steps = 3;
  /// Maximum number of recorded graphs, at least 1. The least recently used one
  /// makes room for a new one. Raise it if steps have more kinds than that; all
  /// share one pool of memory, but each has inputs and outputs of its own.
  int max_graphs = 8;
  /// Return copies of the outputs, which remain valid after the next call.
  bool clone_outputs = false;
};

/// What the calls of a captured step have done so far.
struct CapturedStepCounts {
  /// Calls that ran the function itself.
  std::int64_t plain = 0;
  /// Calls in which the function was recorded; each is also a replay.
  std::int64_t recorded = 0;
  /// Calls that replayed a graph.
  std::int64_t replayed = 0;
};

namespace detail {

struct Session;
class StepGraphs;

/// Throws ConfigError for options out of range.
ACCELERATE_API std::shared_ptr<StepGraphs> make_step_graphs(
    std::shared_ptr<Session> session,
    const CaptureOptions& options);
/// Runs `run`, or replays what it did. `run` reads the inputs, whose tensors
/// may be replaced before the call, and returns the outputs.
ACCELERATE_API std::shared_ptr<void> call_step(
    StepGraphs& graphs,
    const NestedParts& inputs,
    const std::function<std::shared_ptr<void>()>& run);
/// Replaces a tensor, unless it is undefined: by one detached from its graph,
/// and by a copy.
ACCELERATE_API void detach_output(at::Tensor& tensor);
ACCELERATE_API void clone_output(at::Tensor& tensor);
ACCELERATE_API const std::string& reason_of(const StepGraphs& graphs);
ACCELERATE_API CapturedStepCounts counts_of(const StepGraphs& graphs);
ACCELERATE_API void reset_step(StepGraphs& graphs);

}  // namespace detail

template <class Signature>
class CapturedStep;

/// A training step that Accelerator::capture() made: a function of tensors,
/// which runs a few times, is then recorded as a graph of the device's kernels,
/// and is replayed from then on, so that the host launches one graph where it
/// launched every kernel. Where there are no graphs (on a CPU) or the step
/// cannot be recorded, each call runs the function, with the same results.
///
///     auto step = accelerator.capture([&](torch::Tensor x, torch::Tensor y) {
///       auto loss = criterion(model(x), y);
///       accelerator.backward(loss);
///       optimizer.step();
///       optimizer.zero_grad();
///       return loss;
///     });
///     for (auto& [x, y] : loader) auto loss = step(x, y);
///
/// Models, optimizers and schedules that the function uses must be prepared.
/// Arguments are copied into the memory that the graph reads, from any device;
/// the function sees them on the accelerator's device. Numbers and strings
/// among them are part of the kind of a step: each value has its own graph.
/// Outputs carry no graph of autograd, and lie in the graph's memory: they are
/// valid until the next call (CaptureOptions::clone_outputs). So are the
/// gradients that the step leaves.
///
/// In a replay only kernels run, and what the library does on the host: windows
/// of accumulate(), prepared optimizers and schedules, the loss scaler. Other
/// code of the function runs in the plain calls and while it is recorded, when
/// tensors have no values yet. Tensors from outside that change between calls
/// must change in place; after moving or replacing one that belongs to no
/// prepared model or optimizer, call reset().
///
/// A cheap handle: copies refer to the same step. Not thread-safe.
template <class Result, class... Args>
class CapturedStep<Result(Args...)> {
  static_assert(
      (!std::is_rvalue_reference_v<Args> && ...),
      "a captured step must take its arguments by value or const reference");
  using Outputs = std::remove_cvref_t<Result>;
  static_assert(
      std::is_void_v<Outputs> || NestedTensors<Outputs>,
      "a captured step must return tensors, nested values "
      "with tensors, or nothing");

 public:
  CapturedStep(
      std::shared_ptr<detail::StepGraphs> graphs,
      std::function<Result(Args...)> step,
      const CaptureOptions& options)
      : graphs_(std::move(graphs)),
        step_(
            std::make_shared<std::function<Result(Args...)>>(std::move(step))),
        clone_outputs_(options.clone_outputs) {}

  /// Runs or replays the step. Throws what the function throws.
  Outputs operator()(const std::remove_cvref_t<Args>&... args) const {
    std::tuple<std::remove_cvref_t<Args>...> values(args...);
    const std::shared_ptr<void> outputs = detail::call_step(
        *graphs_, detail::parts_of(values), [&] { return run(values); });
    if constexpr (!std::is_void_v<Outputs>) {
      Outputs copy = *std::static_pointer_cast<Outputs>(outputs);
      if (clone_outputs_)
        visit_tensors(copy, TensorVisitor{detail::clone_output});
      return copy;
    }
  }

  /// True if the last call replayed a graph.
  [[nodiscard]] bool captured() const { return reason().empty(); }
  /// Why the last call ran the function itself, in words; empty if it replayed
  /// a graph.
  [[nodiscard]] const std::string& reason() const {
    return detail::reason_of(*graphs_);
  }
  /// How often the step ran, as a graph and otherwise.
  [[nodiscard]] CapturedStepCounts counts() const {
    return detail::counts_of(*graphs_);
  }
  /// Forgets all graphs and frees their memory; the next calls warm up again.
  void reset() const { detail::reset_step(*graphs_); }

 private:
  using Values = std::tuple<std::remove_cvref_t<Args>...>;

  std::shared_ptr<void> run(Values& values) const {
    if constexpr (std::is_void_v<Outputs>) {
      std::apply(*step_, values);
      return nullptr;
    } else {
      auto made = std::make_shared<Outputs>(std::apply(*step_, values));
      visit_tensors(*made, TensorVisitor{detail::detach_output});
      return made;
    }
  }

  detail::KeptPtr<detail::StepGraphs> graphs_;
  detail::KeptPtr<std::function<Result(Args...)>> step_;
  bool clone_outputs_ = false;
};

namespace detail {
template <class Result, class... Args>
CapturedStep<Result(Args...)> make_captured_step(
    std::shared_ptr<Session> session,
    std::function<Result(Args...)> step,
    const CaptureOptions& options) {
  return {
      make_step_graphs(std::move(session), options), std::move(step), options};
}
}  // namespace detail

}  // namespace accelerate
