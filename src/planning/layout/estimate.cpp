#include "planning/layout/step_time.h"

#include <algorithm>

#include "planning/layout/disk_wait.h"
#include "planning/layout/layer_seconds.h"

namespace accelerate::detail {

namespace {

/// Estimates the parts of a step by formula, without simulating their overlap.
class StepEstimate {
 public:
  explicit StepEstimate(const LayoutCase& of)
      : of_(of),
        layout_(of.layout),
        programs_(1),
        rank_(add_rank(programs_, of.cluster(), of.layout.num_ranks())),
        num_dense_(static_cast<double>(
            of.model.shape.num_experts > 0 ? of.model.shape.num_dense_layers
                                           : of.model.shape.num_layers)),
        num_layers_(static_cast<double>(of.model.shape.num_layers)) {}

  [[nodiscard]] double seconds() const {
    const double stages = layout_.pipeline;
    const double compute = (layout_.recomputes ? 4 : 3) * forward();
    const double bytes = parameter_bytes();
    double micro_step = compute + activations() + accumulation(bytes);
    const double reduce = reduction(bytes);
    double after = 0;
    if (of_.gathers_parameters()) {
      const double gather =
          2 * alone(CollectivePattern::all_gather, of_.shard_group(), bytes);
      micro_step = std::max(micro_step, gather + reduce);
    } else if (layout_.sharding != LayoutSharding::none) {
      after = alone(CollectivePattern::all_gather, of_.shard_group(), bytes);
    }
    // Messages that processors copy cannot overlap with computation.
    if (of_.cluster().measured.shared_processors > 0) after += reduce;
    const double bubble = (stages - 1) / layout_.num_chunks * micro_step *
        (layout_.schedule == PipelineScheduleKind::zero_bubble ? 1.0 / 3 : 1);
    const double seconds =
        static_cast<double>(layout_.num_micro_batches) * micro_step + bubble +
        std::max(0.0, reduce - compute * 2 / 3) + after;
    return seconds + disk_wait(of_, bytes / of_.element_bytes(), seconds, 0);
  }

 private:
  [[nodiscard]] double
  alone(CollectivePattern pattern, const RankGroup& group, double bytes) const {
    return seconds_alone(
        programs_, collective(of_.cluster(), rank_, pattern, group, bytes, ""));
  }

  // Sum over the layers of one stage.
  template <class Value>
  [[nodiscard]] double over_layers(Value&& value) const {
    return (num_dense_ * value(of_.model.dense_layer) +
            (num_layers_ - num_dense_) * value(of_.model.expert_layer)) /
        layout_.pipeline;
  }

  [[nodiscard]] double forward() const {
    const double share = programs_.resources()[rank_.processor].most_per_task;
    return (over_layers([&](const LayerCosts& layer) {
              return forward_seconds(of_, layer);
            }) +
            head_seconds(of_) / layout_.pipeline) /
        share;
  }

  // Seconds of accumulating gradients over micro-batches.
  [[nodiscard]] double accumulation(double bytes) const {
    const auto count = static_cast<double>(layout_.num_micro_batches);
    const double share = programs_.resources()[rank_.processor].most_per_task;
    return 3 * bytes / (of_.reduces_always() ? layout_.shard : 1) /
        of_.cluster().memory_bytes_per_second / share * (count - 1) / count;
  }

  // Seconds of messages of activations, which a rank waits for.
  [[nodiscard]] double activations() const {
    const double bytes = of_.tokens() *
        static_cast<double>(of_.model.shape.hidden_size) * of_.element_bytes();
    double seconds = 0;
    if (layout_.tensor > 1) {
      seconds += (4 * num_layers_ + 2) / layout_.pipeline *
          reduction_seconds(of_).value_or(
              alone(CollectivePattern::all_reduce, of_.tensor_group(), bytes));
    }
    if (layout_.context > 1) {
      seconds += 3 * num_layers_ / layout_.pipeline * layout_.context *
          of_.cluster().measured.seconds_per_ring_block;
    }
    if (layout_.expert > 1) {
      seconds += 4 * (num_layers_ - num_dense_) / layout_.pipeline *
          alone(CollectivePattern::all_to_all,
                of_.expert_group(),
                bytes * static_cast<double>(of_.model.shape.top_k));
    }
    return seconds;
  }

  [[nodiscard]] double parameter_bytes() const {
    return of_.element_bytes() / layout_.tensor *
        over_layers([&](const LayerCosts& layer) {
             return layer.dense_parameters +
                 layer.expert_parameters / layout_.expert;
           });
  }

  [[nodiscard]] double reduction(double bytes) const {
    if (layout_.sharding == LayoutSharding::none)
      return alone(CollectivePattern::all_reduce, of_.replica_group(), bytes);
    return alone(CollectivePattern::reduce_scatter, of_.shard_group(), bytes) +
        alone(CollectivePattern::all_reduce,
              of_.replica_group(),
              bytes / layout_.shard);
  }

  const LayoutCase& of_;
  const TrainingLayout& layout_;
  RankPrograms programs_;
  RankResources rank_;
  double num_dense_;
  double num_layers_;
};

}  // namespace

double estimate_step(const LayoutCase& of) {
  return StepEstimate(of).seconds();
}

}  // namespace accelerate::detail
