// The recomputation of a tape's operators.
#include "activations/tape.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <accelerate/error.h>

#include "activations/random_state.h"
#include "activations/tape_records.h"
#include "base/text/text.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

/// Collects what an operator saves when it is recomputed.
class Tape::Collector final : public SavedTensorKeeper {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
    return std::make_unique<Taker>(*this);
  }

  void begin(Operator& entry) {
    entry_ = &entry;
    num_saved_ = 0;
  }
  [[nodiscard]] std::size_t num_saved() const { return num_saved_; }

 private:
  class Taker final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Taker(Collector& collector) : collector_(collector) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      collector_.take(tensor);
    }
    at::Tensor call_unpack_hook() override {
      throw InternalError(
          "[activations] recomputed operators have no backward");
    }

   private:
    Collector& collector_;
  };

  void take(const at::Tensor& tensor) {
    const std::size_t number = num_saved_++;
    if (entry_ == nullptr || number >= entry_->saved.size()) return;
    Saved& saved = entry_->saved[number];
    if (saved.num_hooks == 0) return;
    const at::NoGradGuard no_grad;
    saved.value = saved.is_changed_later ? tensor.detach().clone()
                                         : tensor.variable_data();
  }

  Operator* entry_ = nullptr;
  std::size_t num_saved_ = 0;
};

at::Tensor Tape::outside_again(
    const Outside& outside,
    std::vector<at::Tensor>& copies) const {
  if (outside.copy) {
    const at::AutoGradMode grad_mode(true);
    at::Tensor& copy = copies[*outside.copy];
    if (!copy.defined()) {
      const at::Tensor& kept = copies_[*outside.copy];
      // Autograd forbids changing a leaf in place; a clone is not a leaf.
      copy = outside.requires_grad
          ? kept.variable_data().requires_grad_(true).clone()
          : kept.clone();
      watch_copy(copy, outside.tensor);
    }
    if (copy.scalar_type() != outside.tensor.scalar_type()) {
      throw Error(format(
          "[activations] {} changes a tensor from outside that it also reads "
          "as another type, which cannot be recomputed; copy it before",
          name_));
    }
    return at::as_strided(
        copy,
        outside.tensor.sizes(),
        outside.tensor.strides(),
        outside.tensor.storage_offset());
  }
  if (outside.version &&
      outside.counter.current_version() != *outside.version) {
    throw Error(format(
        "[activations] a tensor that {} took from outside was changed in place "
        "before the backward (from version {} to {}); "
        "copy it before the change",
        name_,
        *outside.version,
        outside.counter.current_version()));
  }
  at::Tensor tensor =
      outside.on_host ? outside.on_host->back() : outside.tensor;
  if (outside.requires_grad && !tensor.requires_grad())
    tensor = tensor.variable_data().requires_grad_(true);
  return tensor;
}

void Tape::replay() {
  const c10::impl::ExcludeDispatchKeyGuard exclude(kRecordingKey);
  const AutocastStateScope autocast;
  Collector collector;
  const SavedTensorScope collecting(collector);
  if (!is_closed_) find_copies();
  Replay replay{
      std::vector<at::Tensor>(num_made_),
      std::vector<at::Tensor>(outside_.size()),
      std::vector<at::Tensor>(copies_.size())};
  const std::size_t end = end_of_wanted();
  for (std::size_t o = 0; o < end; ++o) {
    Operator& entry = operators_[o];
    if (entry.has_failed) continue;
    torch::jit::Stack stack = arguments_again(entry, replay);
    run_again(entry, stack, collector);
    compare(entry);
    keep_made(entry, stack, replay);
    for (const std::size_t unused : entry.last_uses)
      replay.made[unused].reset();
  }
}

std::size_t Tape::end_of_wanted() const {
  const auto is_wanted = [](const Saved& saved) { return saved.num_hooks > 0; };
  const auto is_needed = [&](const Operator& entry) {
    return std::ranges::any_of(entry.saved, is_wanted) ||
        std::ranges::any_of(entry.outputs, [&](const Output& output) {
             const auto found = saved_made_.find(output.made);
             return found != saved_made_.end() && is_wanted(found->second);
           });
  };
  std::size_t end = operators_.size();
  while (end > 0 && !is_needed(operators_[end - 1])) --end;
  return end;
}

torch::jit::Stack Tape::arguments_again(const Operator& entry, Replay& replay)
    const {
  torch::jit::Stack stack = entry.arguments;
  for (const Input& input : entry.inputs) {
    at::Tensor tensor = input_again(input, replay);
    if (!input.item) {
      stack[input.argument] = std::move(tensor);
    } else {
      c10::List<c10::IValue> items = stack[input.argument].toList().copy();
      items.set(*input.item, std::move(tensor));
      stack[input.argument] = std::move(items);
    }
  }
  return stack;
}

at::Tensor Tape::input_again(const Input& input, Replay& replay) const {
  const std::size_t index = input.place.index;
  at::Tensor tensor;
  if (input.place.kind == Place::Kind::made) {
    tensor = replay.made[index];
  } else {
    at::Tensor& again = replay.outside[index];
    if (!again.defined()) again = outside_again(outside_[index], replay.copies);
    tensor = again;
  }
  // The tensor comes from the user's own node, which is not recomputed.
  if (input.requires_grad && !tensor.requires_grad())
    tensor = tensor.detach().requires_grad_(true);
  return tensor;
}

void Tape::run_again(
    Operator& entry,
    torch::jit::Stack& stack,
    Collector& collector) const {
  {
    const at::AutoGradMode grad_mode(entry.grad_mode);
    entry.autocast.set();
    const RandomStateScope random(entry.generator, entry.random_state);
    collector.begin(entry);
    entry.operation.callBoxed(stack);
  }
  if (collector.num_saved() != entry.saved.size()) {
    throw Error(format(
        "[activations] {} in {} saved {} tensors for backward, and {} when "
        "it was recomputed; leave this part out of checkpointing",
        entry.operation.schema().name(),
        name_,
        entry.saved.size(),
        collector.num_saved()));
  }
}

void Tape::keep_made(
    const Operator& entry,
    const torch::jit::Stack& stack,
    Replay& replay) {
  for (const Output& output : entry.outputs) {
    const c10::IValue& value = stack[output.value];
    at::Tensor& made = replay.made[output.made];
    made = output.item ? value.toListRef()[*output.item].toTensor()
                       : value.toTensor();
    const auto found = saved_made_.find(output.made);
    if (found != saved_made_.end() && found->second.num_hooks > 0)
      found->second.value = made.variable_data();
  }
}

void Tape::compare(const Operator& entry) const {
  bool has_compared = false;
  for (const Saved& saved : entry.saved) {
    if (!saved.fingerprint || !saved.value.defined()) continue;
    has_compared = true;
    const Fingerprint again = fingerprint_of(saved.value);
    if (again.is_like(*saved.fingerprint)) continue;
    throw Error(format(
        "[activations] what {} in {} saved for backward must be the same when "
        "recomputed, but its sum was {} and is {}: memory of a tensor was "
        "written without an operator; register that kernel with TORCH_LIBRARY, "
        "or leave this part out of checkpointing",
        entry.operation.schema().name(),
        name_,
        saved.fingerprint->sum,
        again.sum));
  }
  if (has_compared) compared_->add(entry.history);
}

}  // namespace accelerate::detail
