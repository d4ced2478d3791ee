#include "train/plan/step_simulation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/shard/unshard/execution_order.h"
#include "train/plan/resident_memory.h"

namespace accelerate::detail {

namespace {

// As in host_unshard.cpp, unshard_schedule.cpp and average_gradients.h.
constexpr std::int64_t kSmallParameter = 32 << 10;
constexpr std::size_t kKeptUnits = 2;
constexpr std::int64_t kMessageBytes = 25 << 20;

constexpr int kRepeatedSteps = 2;
// The size of an element in one tensor of an optimizer's state.
constexpr std::int64_t kStateBytes = 4;

class StepSimulation {
 public:
  StepSimulation(
      const PlannedModel& model,
      const StepTrace& trace,
      const MemoryCase& at,
      const StepSettings& settings)
      : model_(model),
        trace_(trace),
        at_(at),
        settings_(settings),
        shards_parameters_(
            at.split == MemorySplit::full_shard ||
            at.split == MemorySplit::hybrid_shard),
        is_sharded_(at.num_shards > 1),
        casts_(
            is_sharded_ && settings.computes_in_16_bits &&
            at.precision != FloatType::fp32),
        is_full_(model.parameters.size(), false),
        memory_(
            is_sharded_ && settings.keeps_freed_blocks ? local_gradients()
                                                       : 0) {}

  MemoryRow run() {
    hold_model();
    // The first step learns the order of units; freed blocks that are kept need
    // some more until they are those of every step.
    step();
    memory_.forget_peak();
    for (int i = 0; i < kRepeatedSteps; ++i) step();
    return row();
  }

 private:
  [[nodiscard]] bool is_shard(const PlannedParameter& parameter) const {
    return is_sharded_ && parameter.unit != PlannedParameter::kUnsharded;
  }
  // Elements on this rank: the largest share of rows.
  [[nodiscard]] std::int64_t local_elements(
      const PlannedParameter& parameter) const {
    if (!is_shard(parameter)) return parameter.num_elements;
    const std::int64_t rows =
        (parameter.num_rows + at_.num_shards - 1) / at_.num_shards;
    return parameter.num_elements /
        std::max<std::int64_t>(parameter.num_rows, 1) * rows;
  }
  [[nodiscard]] std::int64_t local_element_bytes(
      const PlannedParameter& parameter) const {
    const bool is_upcast =
        casts_ && is_shard(parameter) && parameter.is_trained;
    return is_upcast ? std::max<std::int64_t>(parameter.element_bytes, 4)
                     : parameter.element_bytes;
  }
  [[nodiscard]] std::int64_t local_bytes(
      const PlannedParameter& parameter) const {
    return local_elements(parameter) * local_element_bytes(parameter);
  }
  // Bytes of an element of the full parameter and of its gradient.
  [[nodiscard]] std::int64_t full_element_bytes(
      const PlannedParameter& parameter) const {
    const bool is_cast =
        casts_ && is_shard(parameter) && !parameter.keeps_precision;
    return is_cast ? std::min<std::int64_t>(parameter.element_bytes, 2)
                   : parameter.element_bytes;
  }
  [[nodiscard]] std::int64_t full_bytes(
      const PlannedParameter& parameter) const {
    return parameter.num_elements * full_element_bytes(parameter);
  }
  [[nodiscard]] std::int64_t local_gradients() const {
    std::int64_t bytes = 0;
    for (const PlannedParameter& each : model_.parameters)
      bytes += each.is_trained ? local_bytes(each) : 0;
    return bytes;
  }
  [[nodiscard]] bool travels_alone(const PlannedParameter& parameter) const {
    return full_bytes(parameter) >= kSmallParameter;
  }
  [[nodiscard]] bool has_buckets() const {
    return !is_sharded_ && at_.num_ranks > 1;
  }
  // ZeRO-1 and replicas keep full gradients between micro-steps.
  [[nodiscard]] bool keeps_full_gradients() const {
    return !is_sharded_ || at_.split == MemorySplit::zero_1;
  }

  // What the largest message needs of a slot.
  [[nodiscard]] std::int64_t touched_of_slot() const {
    std::int64_t largest = 0;
    std::int64_t buckets = 0;
    for (const PlannedParameter& each : model_.parameters) {
      if (!each.is_trained) continue;
      const std::int64_t bytes = full_bytes(each);
      if (is_shard(each)) {
        largest = std::max(largest, bytes - bytes / at_.num_shards);
      } else if (has_buckets()) {
        buckets += bytes;
      }
    }
    if (buckets < settings_.slot_bytes) largest = std::max(largest, buckets);
    return std::min(largest, settings_.slot_bytes);
  }

  void hold_model() {
    memory_.take_unkept(MemoryUse::workspace, 2 * touched_of_slot());
    memory_.take(MemoryUse::weights, model_.buffer_bytes);
    for (const PlannedParameter& each : model_.parameters) {
      const bool is_whole = !is_shard(each) || !shards_parameters_;
      memory_.take(
          MemoryUse::weights, is_whole ? full_bytes(each) : local_bytes(each));
      // Shards are views of full parameters unless their dtypes differ.
      if (is_whole && is_shard(each) &&
          full_element_bytes(each) != local_element_bytes(each))
        memory_.take(MemoryUse::optimizer_state, local_bytes(each));
      if (!each.is_trained) continue;
      for (std::int64_t i = 0; i < settings_.state_bytes; i += kStateBytes)
        memory_.take(
            MemoryUse::optimizer_state, local_elements(each) * kStateBytes);
      if (has_buckets()) memory_.take(MemoryUse::buckets, each.num_bytes());
    }
  }

  void step() {
    gradients_.assign(model_.parameters.size(), 0);
    if (at_.accumulation_steps > 1) hold_gradients();
    allocations_.assign(trace_.num_allocations, 0);
    order_ = &forward_order_;
    order_->begin();
    for (const TraceEvent& event : trace_.events) play(event);
    end_backward();
    take_optimizer_step();
  }

  // What earlier micro-steps of the window left.
  void hold_gradients() {
    for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
      const PlannedParameter& parameter = model_.parameters[p];
      if (!parameter.is_trained) continue;
      if (has_buckets() && settings_.gradient_as_bucket_view) continue;
      keep_gradient(
          p,
          keeps_full_gradients() ? full_bytes(parameter)
                                 : local_bytes(parameter));
    }
  }

  void keep_gradient(std::size_t p, std::int64_t bytes) {
    memory_.take(MemoryUse::gradients, bytes);
    gradients_[p] += bytes;
  }
  void drop_gradient(std::size_t p) {
    memory_.give(MemoryUse::gradients, std::exchange(gradients_[p], 0));
  }

  void play(const TraceEvent& event) {
    switch (event.kind) {
      case TraceEvent::Kind::allocate: {
        const double bytes = event.fixed_bytes +
            event.bytes_per_sample * static_cast<double>(at_.micro_batch);
        allocations_[event.index] =
            static_cast<std::int64_t>(std::max(std::llround(bytes), 0LL));
        if (event.is_kernels_own) {
          memory_.take_unkept(
              MemoryUse::activations, allocations_[event.index]);
        } else {
          memory_.take(MemoryUse::activations, allocations_[event.index]);
        }
        break;
      }
      case TraceEvent::Kind::release: {
        const std::int64_t bytes = std::exchange(allocations_[event.index], 0);
        if (event.is_kernels_own) {
          memory_.take_unkept(MemoryUse::activations, -bytes);
        } else {
          memory_.give(MemoryUse::activations, bytes);
        }
        break;
      }
      case TraceEvent::Kind::read:
        if (shards_parameters_) read(event.index);
        break;
      case TraceEvent::Kind::end_of_forward:
        end_forward();
        break;
      case TraceEvent::Kind::gradient:
        complete_gradient(event);
        break;
    }
  }

  // Units: UnshardSchedule.

  void gather(std::size_t unit) {
    for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
      if (model_.parameters[p].unit != unit || is_full_[p]) continue;
      is_full_[p] = true;
      memory_.take(MemoryUse::units, full_bytes(model_.parameters[p]));
    }
  }
  void reshard_parameter(std::size_t p) {
    if (!is_full_[p]) return;
    is_full_[p] = false;
    memory_.give(MemoryUse::units, full_bytes(model_.parameters[p]));
  }
  void reshard(std::size_t unit) {
    for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
      if (model_.parameters[p].unit == unit) reshard_parameter(p);
    }
  }

  void read(std::size_t p) {
    const std::size_t unit = model_.parameters[p].unit;
    if (unit == PlannedParameter::kUnsharded) return;
    if (current_ == unit && is_full_[p]) return;
    order_->touch(unit);
    gather(unit);
    const auto previous = std::exchange(current_, unit);
    if (previous && *previous != unit &&
        !order_->is_due_soon(*previous, kKeptUnits))
      reshard(*previous);
    for (const std::size_t next : order_->next(1)) {
      if (next != unit) gather(next);
    }
  }

  void end_forward() {
    order_->end();
    if (shards_parameters_) {
      for (std::size_t unit = 0; unit < model_.num_units; ++unit) {
        if (current_ != unit) reshard(unit);
      }
    }
    order_ = &backward_order_;
    order_->begin();
    pending_.assign(model_.num_units, 0);
    for (const PlannedParameter& each : model_.parameters) {
      if (is_shard(each) && each.is_trained) ++pending_[each.unit];
    }
  }

  // Gradients: Replicate, and GradientReducer with HostReduction.

  void complete_gradient(const TraceEvent& event) {
    const std::size_t p = event.index;
    const PlannedParameter& parameter = model_.parameters[p];
    std::int64_t bytes = full_bytes(parameter);
    if (event.allocation != TraceEvent::kNone) {
      bytes = std::exchange(allocations_[event.allocation], 0);
    } else {
      memory_.take(MemoryUse::activations, bytes);
    }
    if (!is_shard(parameter)) {
      if (gradients_[p] > 0 ||
          (has_buckets() && settings_.gradient_as_bucket_view)) {
        // Added to, or copied into, the memory that there is.
        memory_.give(MemoryUse::activations, bytes);
      } else {
        memory_.move(MemoryUse::activations, MemoryUse::gradients, bytes);
        gradients_[p] = bytes;
      }
      return;
    }
    if (gradients_[p] > 0 && keeps_full_gradients()) {
      memory_.give(MemoryUse::activations, bytes);
      bytes = std::exchange(gradients_[p], 0);
      memory_.move(MemoryUse::gradients, MemoryUse::units, bytes);
    } else {
      memory_.move(MemoryUse::activations, MemoryUse::units, bytes);
    }
    reduce(p, bytes);
  }

  struct Message {
    std::size_t parameter;
    std::int64_t outgoing;
    std::int64_t incoming;
  };

  // `outgoing`: bytes of the full gradient.
  void reduce(std::size_t p, std::int64_t outgoing) {
    const PlannedParameter& parameter = model_.parameters[p];
    const bool frees =
        shards_parameters_ && !order_->is_due_soon(parameter.unit, kKeptUnits);
    if (travels_alone(parameter)) {
      if (frees) reshard_parameter(p);
      finish_messages();
      const std::int64_t share =
          local_elements(parameter) * full_element_bytes(parameter);
      for (int peer = 1; peer < at_.num_shards; ++peer)
        memory_.take(MemoryUse::units, share);
      in_flight_.push_back({p, outgoing, share});
    } else {
      in_flight_.push_back({p, outgoing, 0});
    }
    if (--pending_[parameter.unit] == 0 && frees) reshard(parameter.unit);
  }

  void finish_messages() {
    for (const Message& message : in_flight_) finish(message);
    in_flight_.clear();
  }

  void finish(const Message& message) {
    const PlannedParameter& parameter = model_.parameters[message.parameter];
    const std::int64_t mean = local_bytes(parameter);
    const bool is_added = gradients_[message.parameter] > 0;
    const bool keeps_one = message.incoming == mean && !is_added;
    int freed = message.incoming > 0 ? at_.num_shards - 1 : 0;
    if (keeps_one && freed > 0) {
      memory_.move(MemoryUse::units, MemoryUse::gradients, mean);
      gradients_[message.parameter] = mean;
      --freed;
    } else if (!is_added) {
      keep_gradient(message.parameter, mean);
    }
    if (local_element_bytes(parameter) != full_element_bytes(parameter))
      take_for_a_moment(mean);
    for (; freed > 0; --freed) memory_.give(MemoryUse::units, message.incoming);
    memory_.give(MemoryUse::units, message.outgoing);
  }

  // On the CPU, LibTorch adds a tensor of another dtype by way of a copy.
  void take_for_a_moment(std::int64_t bytes) {
    memory_.take(MemoryUse::workspace, bytes);
    memory_.give(MemoryUse::workspace, bytes);
  }

  void end_backward() {
    order_->end();
    finish_messages();
    for (std::size_t unit = 0; shards_parameters_ && unit < model_.num_units;
         ++unit)
      reshard(unit);
    current_.reset();
    if (is_sharded_ && at_.num_ranks > at_.num_shards) {
      const std::int64_t message = std::min(local_gradients(), kMessageBytes);
      take_for_a_moment(message);
    }
  }

  void take_optimizer_step() {
    for (const PlannedParameter& each : model_.parameters) {
      if (!each.is_trained) continue;
      const std::int64_t bytes = local_bytes(each);
      for (int i = 0; i < settings_.num_temporaries; ++i)
        memory_.take(MemoryUse::workspace, bytes);
      for (int i = 0; i < settings_.num_temporaries; ++i)
        memory_.give(MemoryUse::workspace, bytes);
    }
    for (std::size_t p = 0; p < gradients_.size(); ++p) drop_gradient(p);
    // Allocations that the trace does not end are the loop's, such as the loss.
    for (std::int64_t& bytes : allocations_)
      memory_.give(MemoryUse::activations, std::exchange(bytes, 0));
  }

  [[nodiscard]] MemoryRow row() const {
    const auto bytes = [&](MemoryUse use) {
      return static_cast<std::uint64_t>(std::max<std::int64_t>(
          memory_.peak()[static_cast<std::size_t>(use)], 0));
    };
    return {
        .at = at_,
        .weights = bytes(MemoryUse::weights),
        .gradients = bytes(MemoryUse::gradients),
        .optimizer_state = bytes(MemoryUse::optimizer_state),
        .buckets = bytes(MemoryUse::buckets),
        .units = bytes(MemoryUse::units),
        .activations = bytes(MemoryUse::activations),
        .workspace = bytes(MemoryUse::workspace)};
  }

  const PlannedModel& model_;
  const StepTrace& trace_;
  const MemoryCase& at_;
  const StepSettings& settings_;
  bool shards_parameters_;
  bool is_sharded_;
  // Sharded models compute with parameters in 16 bits, whatever is divided, and
  // step on shards in fp32.
  bool casts_;
  std::vector<bool> is_full_;  // by parameter
  ResidentMemory memory_;
  std::vector<std::int64_t> allocations_;
  std::vector<std::int64_t> gradients_;  // bytes kept, by parameter
  ExecutionOrder forward_order_;
  ExecutionOrder backward_order_;
  ExecutionOrder* order_ = &forward_order_;
  std::optional<std::size_t> current_;
  std::vector<std::size_t> pending_;  // gradients, by unit
  std::vector<Message> in_flight_;
};

}  // namespace

MemoryRow simulate_step(
    const PlannedModel& model,
    const StepTrace& trace,
    const MemoryCase& at,
    const StepSettings& settings) {
  return StepSimulation(model, trace, at, settings).run();
}

}  // namespace accelerate::detail
