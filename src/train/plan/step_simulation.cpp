#include "train/plan/step_simulation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/shard/unshard/execution_order.h"
#include "train/memory/resident_memory.h"
#include "train/plan/planned_sizes.h"

namespace accelerate::detail {

namespace {

// These are as in unshard_schedule.cpp and average_gradients.h.
constexpr std::size_t kKeptUnits = 2;
constexpr std::int64_t kMessageBytes = 25 << 20;

constexpr int kRepeatedSteps = 2;
// The size of an element in one tensor of an optimizer's state.
constexpr std::int64_t kStateBytes = 4;

// The parameters that are gathered, as by UnshardSchedule.
class SimulatedUnits {
  using Block = ResidentMemory::Block;

 public:
  SimulatedUnits(
      const PlannedModel& model,
      const PlannedSizes& sizes,
      ResidentMemory& memory)
      : model_(model),
        sizes_(sizes),
        memory_(memory),
        is_full_(model.parameters.size(), false),
        full_(model.parameters.size()) {}

  void begin_forward() {
    order_ = &forward_order_;
    order_->begin();
  }

  void reshard_parameter(std::size_t p) {
    if (!is_full_[p]) return;
    is_full_[p] = false;
    memory_.give(MemoryUse::units, full_[p]);
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
    if (previous && *previous != unit && !is_due_soon(*previous))
      reshard(*previous);
    for (const std::size_t next : order_->next(1)) {
      if (next != unit) gather(next);
    }
  }

  [[nodiscard]] bool is_due_soon(std::size_t unit) const {
    return order_->is_due_soon(unit, kKeptUnits);
  }

  void begin_backward() {
    order_->end();
    if (sizes_.shards_parameters()) {
      for (std::size_t unit = 0; unit < model_.num_units; ++unit) {
        if (current_ != unit) reshard(unit);
      }
    }
    order_ = &backward_order_;
    order_->begin();
  }

  void end_backward() {
    order_->end();
    for (std::size_t unit = 0;
         sizes_.shards_parameters() && unit < model_.num_units;
         ++unit)
      reshard(unit);
    current_.reset();
  }

 private:
  void gather(std::size_t unit) {
    for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
      if (model_.parameters[p].unit != unit || is_full_[p]) continue;
      is_full_[p] = true;
      full_[p] = memory_.take(
          MemoryUse::units, sizes_.full_bytes(model_.parameters[p]));
    }
  }

  const PlannedModel& model_;
  const PlannedSizes& sizes_;
  ResidentMemory& memory_;
  std::vector<bool> is_full_;  // by parameter
  std::vector<Block> full_;    // by parameter
  ExecutionOrder forward_order_;
  ExecutionOrder backward_order_;
  ExecutionOrder* order_ = &forward_order_;
  std::optional<std::size_t> current_;
};

class StepSimulation {
  using Block = ResidentMemory::Block;

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
        sizes_(model, at, settings),
        units_(model, sizes_, memory_) {}

  MemoryRow run() {
    hold_model();
    // The first step learns the order of units; the kept freed blocks need a
    // few more steps to settle.
    step();
    memory_.forget_peak();
    for (int i = 0; i < kRepeatedSteps; ++i) step();
    return row();
  }

 private:
  // Makes the model, then divides it.
  void hold_model() {
    memory_.take_unkept(MemoryUse::workspace, sizes_.slots());
    memory_.take_unkept(MemoryUse::units, sizes_.files().buffers);
    memory_.take(MemoryUse::weights, model_.buffer_bytes);
    std::vector<Block> made;
    for (const PlannedParameter& each : model_.parameters)
      made.push_back(memory_.take(MemoryUse::weights, each.num_bytes()));
    const bool keeps_blocks =
        sizes_.is_sharded() && settings_.keeps_freed_blocks;
    if (keeps_blocks) memory_.keep_freed_blocks(0);
    for (std::size_t p = 0; p < made.size(); ++p) {
      const PlannedParameter& parameter = model_.parameters[p];
      if (sizes_.is_shard(parameter)) divide(parameter, made[p]);
      if (parameter.is_trained && sizes_.has_buckets())
        memory_.take_unkept(MemoryUse::buckets, parameter.num_bytes());
    }
    if (keeps_blocks) {
      memory_.keep_freed_blocks(sizes_.local_gradients());
      memory_.return_free_memory();
    }
  }

  // As in make_units.cpp: this rank's shard is copied, then the full parameter
  // is cast. The heap keeps the memory that this takes.
  void divide(const PlannedParameter& parameter, Block whole) {
    const bool is_cast =
        sizes_.full_element_bytes(parameter) != parameter.element_bytes;
    // Shards are views of full parameters unless their dtypes differ.
    if (sizes_.is_on_disk(parameter)) {
      // Nothing stays.
    } else if (sizes_.shards_parameters()) {
      memory_.take(MemoryUse::weights, sizes_.local_bytes(parameter));
    } else if (
        sizes_.full_element_bytes(parameter) !=
        sizes_.local_element_bytes(parameter)) {
      memory_.take(MemoryUse::optimizer_state, sizes_.local_bytes(parameter));
    }
    if (is_cast) {
      const Block cast =
          memory_.take(MemoryUse::weights, sizes_.full_bytes(parameter));
      memory_.give(MemoryUse::weights, std::exchange(whole, cast));
    }
    if (sizes_.shards_parameters()) memory_.give(MemoryUse::weights, whole);
  }

  void step() {
    gradients_.assign(model_.parameters.size(), {});
    if (at_.accumulation_steps > 1) hold_gradients();
    allocations_.assign(trace_.num_allocations, {});
    units_.begin_forward();
    for (const TraceEvent& event : trace_.events) play(event);
    end_backward();
    take_optimizer_step();
  }

  // Gradients that earlier micro-steps of the window left.
  void hold_gradients() {
    for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
      const PlannedParameter& parameter = model_.parameters[p];
      if (!parameter.is_trained) continue;
      if (sizes_.has_buckets() && settings_.gradient_as_bucket_view) continue;
      keep_gradient(
          p,
          sizes_.keeps_full_gradients() ? sizes_.full_bytes(parameter)
                                        : sizes_.local_bytes(parameter));
    }
  }

  void keep_gradient(std::size_t p, std::int64_t bytes) {
    if (sizes_.has_state_on_disk(model_.parameters[p])) return;
    gradients_[p] = memory_.take(MemoryUse::gradients, bytes);
  }
  void drop_gradient(std::size_t p) {
    memory_.give(MemoryUse::gradients, std::exchange(gradients_[p], {}));
  }

  void play(const TraceEvent& event) {
    switch (event.kind) {
      case TraceEvent::Kind::allocate:
        allocations_[event.index] = allocate(event);
        break;
      case TraceEvent::Kind::release: {
        const Block block = std::exchange(allocations_[event.index], {});
        if (event.is_kernels_own) {
          memory_.take_unkept(MemoryUse::activations, -block.num_bytes);
        } else {
          memory_.give(MemoryUse::activations, block);
        }
        break;
      }
      case TraceEvent::Kind::read:
        if (sizes_.shards_parameters()) units_.read(event.index);
        break;
      case TraceEvent::Kind::end_of_forward:
        end_forward();
        break;
      case TraceEvent::Kind::gradient:
        complete_gradient(event);
        break;
    }
  }

  Block allocate(const TraceEvent& event) {
    const std::int64_t bytes = std::llround(bytes_of(event, at_.micro_batch));
    if (!event.is_kernels_own)
      return memory_.take(MemoryUse::activations, bytes);
    memory_.take_unkept(MemoryUse::activations, bytes);
    return {.num_bytes = bytes};
  }

  void end_forward() {
    units_.begin_backward();
    pending_.assign(model_.num_units, 0);
    for (const PlannedParameter& each : model_.parameters) {
      if (sizes_.is_shard(each) && each.is_trained) ++pending_[each.unit];
    }
  }

  // Gradients: Replicate, and GradientReducer with HostReduction.

  void complete_gradient(const TraceEvent& event) {
    const std::size_t p = event.index;
    const PlannedParameter& parameter = model_.parameters[p];
    Block gradient = event.allocation != TraceEvent::kNone
        ? std::exchange(allocations_[event.allocation], {})
        : memory_.take(MemoryUse::activations, sizes_.full_bytes(parameter));
    if (!sizes_.is_shard(parameter)) {
      if (gradients_[p].num_bytes > 0 ||
          (sizes_.has_buckets() && settings_.gradient_as_bucket_view)) {
        // Accumulated or copied into the existing memory.
        memory_.give(MemoryUse::activations, gradient);
      } else {
        memory_.move(MemoryUse::activations, MemoryUse::gradients, gradient);
        gradients_[p] = gradient;
      }
      return;
    }
    if (gradients_[p].num_bytes > 0 && sizes_.keeps_full_gradients()) {
      memory_.give(MemoryUse::activations, gradient);
      gradient = std::exchange(gradients_[p], {});
      memory_.move(MemoryUse::gradients, MemoryUse::units, gradient);
    } else {
      memory_.move(MemoryUse::activations, MemoryUse::units, gradient);
    }
    reduce(p, gradient);
  }

  struct Message {
    std::size_t parameter;
    Block outgoing;               // the full gradient
    std::vector<Block> incoming;  // shares of the other ranks
  };

  void reduce(std::size_t p, const Block& outgoing) {
    const PlannedParameter& parameter = model_.parameters[p];
    const bool frees =
        sizes_.shards_parameters() && !units_.is_due_soon(parameter.unit);
    Message message{.parameter = p, .outgoing = outgoing, .incoming = {}};
    if (sizes_.travels_alone(parameter)) {
      if (frees) units_.reshard_parameter(p);
      finish_messages();
      const std::int64_t share = sizes_.local_elements(parameter) *
          sizes_.full_element_bytes(parameter);
      for (int peer = 1; peer < at_.num_shards; ++peer)
        message.incoming.push_back(memory_.take(MemoryUse::units, share));
    }
    in_flight_.push_back(std::move(message));
    if (--pending_[parameter.unit] == 0 && frees)
      units_.reshard(parameter.unit);
  }

  void finish_messages() {
    for (Message& message : in_flight_) finish(message);
    in_flight_.clear();
  }

  void finish(Message& message) {
    const PlannedParameter& parameter = model_.parameters[message.parameter];
    const std::int64_t mean = sizes_.local_bytes(parameter);
    if (gradients_[message.parameter].num_bytes == 0) {
      const bool keeps_one = !sizes_.has_state_on_disk(parameter) &&
          !message.incoming.empty() &&
          message.incoming.back().num_bytes == mean;
      if (keeps_one) {
        gradients_[message.parameter] = message.incoming.back();
        message.incoming.pop_back();
        memory_.move(
            MemoryUse::units,
            MemoryUse::gradients,
            gradients_[message.parameter]);
      } else {
        keep_gradient(message.parameter, mean);
      }
    }
    if (sizes_.local_element_bytes(parameter) !=
        sizes_.full_element_bytes(parameter))
      take_for_a_moment(mean);
    for (const Block& each : message.incoming)
      memory_.give(MemoryUse::units, each);
    memory_.give(MemoryUse::units, message.outgoing);
  }

  // On the CPU, LibTorch copies a tensor of another dtype before adding it.
  void take_for_a_moment(std::int64_t bytes) {
    memory_.give(
        MemoryUse::workspace, memory_.take(MemoryUse::workspace, bytes));
  }

  void end_backward() {
    finish_messages();
    units_.end_backward();
    if (sizes_.is_sharded() && at_.num_ranks > at_.num_shards) {
      const std::int64_t message =
          std::min(sizes_.local_gradients(), kMessageBytes);
      take_for_a_moment(message);
    }
  }

  void take_optimizer_step() {
    for (const PlannedParameter& each : model_.parameters) {
      if (!each.is_trained) continue;
      if (!has_state_) make_state(each);
      std::vector<Block> temporaries;
      for (int i = 0; i < settings_.num_temporaries; ++i) {
        temporaries.push_back(
            memory_.take(MemoryUse::workspace, sizes_.local_bytes(each)));
      }
      for (const Block& temporary : temporaries)
        memory_.give(MemoryUse::workspace, temporary);
    }
    has_state_ = true;
    for (std::size_t p = 0; p < gradients_.size(); ++p) drop_gradient(p);
    // Allocations that the trace does not release belong to the loop, such as
    // the loss.
    for (Block& block : allocations_)
      memory_.give(MemoryUse::activations, std::exchange(block, {}));
  }

  // Called in the first step, so the state fills heap ranges that activations
  // left free.
  void make_state(const PlannedParameter& parameter) {
    if (sizes_.has_state_on_disk(parameter)) return;
    for (std::int64_t i = 0; i < settings_.state_bytes; i += kStateBytes)
      memory_.take(
          MemoryUse::optimizer_state,
          sizes_.local_elements(parameter) * kStateBytes);
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
        .workspace = bytes(MemoryUse::workspace),
        .on_disk = static_cast<std::uint64_t>(sizes_.files().bytes)};
  }

  const PlannedModel& model_;
  const StepTrace& trace_;
  const MemoryCase& at_;
  const StepSettings& settings_;
  PlannedSizes sizes_;
  ResidentMemory memory_;
  SimulatedUnits units_;
  std::vector<Block> allocations_;
  std::vector<Block> gradients_;  // that are kept, by parameter
  bool has_state_ = false;
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
