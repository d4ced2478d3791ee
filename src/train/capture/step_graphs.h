#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <accelerate/captured_step.h>

#include "train/capture/captured_run.h"
#include "train/capture/device_graph.h"
#include "train/capture/host_state.h"
#include "train/capture/step_key.h"

namespace accelerate::detail {

/// One recorded step.
struct StepGraph {
  StepKey key = {};
  std::unique_ptr<DeviceGraph> graph = nullptr;
  /// Tensors that the kernels read and write.
  std::vector<at::Tensor> inputs = {};
  std::shared_ptr<void> outputs = nullptr;
  /// The gradients that the step leaves.
  Gradients gradients = {};
  /// The parameters that it changes.
  std::vector<at::Tensor> changed = {};
  HostWork work = {};
  std::int64_t num_replays = 0;
  std::int64_t last_call = 0;
};

/// The graphs of a captured step, and the decision between running, recording
/// and replaying it (captured_step.h).
class StepGraphs {
 public:
  using Run = std::function<std::shared_ptr<void>()>;

  StepGraphs(std::shared_ptr<Session> session, const CaptureOptions& options);

  std::shared_ptr<void> call(const NestedParts& inputs, const Run& run);
  void reset() { learned_ = {}; }

  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] const CapturedStepCounts& counts() const { return counts_; }

 private:
  using WeakTensor =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  /// The plain calls of one kind of step.
  struct Plain {
    int num_calls = 0;
    /// The key's places at the last call.
    std::vector<std::uint64_t> places = {};
    /// The parameters' gradients when the last call began.
    std::vector<WeakTensor> gradients = {};
    /// True if the function drops these gradients before its first backward.
    bool drops_gradients = false;
  };

  /// What the calls have shown since the last reset().
  struct Learned {
    std::vector<at::Tensor> parameters = {};
    std::vector<std::unique_ptr<StepGraph>> graphs = {};
    std::map<std::vector<std::uint64_t>, Plain> plain = {};
    /// The memory of all graphs.
    c10::MempoolId_t pool = {0, 0};
    /// How many micro-steps the function begins.
    int num_micro_steps = 0;
    /// Graphs that made room without having been replayed again.
    int num_wasted = 0;
    /// Why all calls run plainly; empty if they need not.
    std::string given_up = {};
    /// Whether weights are fetched or decoded when they are used, and the
    /// number of models that were asked.
    bool has_kept_weights = false;
    std::size_t num_models_asked = 0;
  };

  /// Why this call cannot be captured; empty if it can.
  [[nodiscard]] std::string obstacle(const NestedParts& inputs);
  [[nodiscard]] std::string obstacle_of_models();
  /// Runs plainly from now on.
  void give_up(std::string reason);
  void warn();
  /// The key of a call, before which gradients are dropped that the function
  /// drops first.
  [[nodiscard]] StepKey key_of_call(const NestedParts& inputs);
  [[nodiscard]] StepGraph* find(const StepKey& key);
  [[nodiscard]] bool is_due(const Plain& plain, const StepKey& key) const;
  [[nodiscard]] bool has_recorded_gradients() const;
  [[nodiscard]] bool has_gradients(const std::vector<WeakTensor>& known) const;
  std::shared_ptr<void> run_plainly(const Run& run);
  /// Runs plainly, on the side stream, and looks for what cannot be captured.
  std::shared_ptr<void> warm_up(const StepKey& key, const Run& run);
  /// Returns null after giving up.
  StepGraph* record(StepKey key, const NestedParts& inputs, const Run& run);
  /// Throws if the run cannot be recorded.
  void record_into(StepGraph& made, CapturedRun& recorded, const Run& run);
  void make_room();
  std::shared_ptr<void> replay(
      StepGraph& graph,
      const std::vector<at::Tensor>& inputs);

  std::shared_ptr<Session> session_;
  const CaptureOptions options_;
  MakeGraph make_graph_ = nullptr;
  std::optional<c10::Stream> side_stream_ = std::nullopt;
  Learned learned_;
  bool has_warned_ = false;
  std::string reason_ = "it was not called yet";
  CapturedStepCounts counts_ = {};
};

}  // namespace accelerate::detail
