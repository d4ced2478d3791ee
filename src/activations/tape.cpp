#include "activations/tape.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "activations/random_state.h"
#include "activations/tape_records.h"
#include "gate/first_of.h"
#include "gate/gate.h"
#include "gate/gate_entry.h"
#include "gate/random_keeper.h"

namespace accelerate::detail {

namespace {

// Facts about an operator that are the same in every call.
struct OperatorFacts {
  /// True if the operator returns or changes tensors.
  bool leaves_trace = false;
  bool is_random = false;
  std::vector<bool> changes_argument;
};

// These operators change what autograd knows about a tensor, not its values.
bool only_marks(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  return name == "aten::requires_grad_" || name == "aten::detach_" ||
      name == "aten::retain_grad" || name == "aten::set_requires_grad";
}

// Normalisations write running statistics although their schemas do not say so.
bool changes_unannounced(const c10::Argument& argument) {
  return argument.name() == "running_mean" || argument.name() == "running_var";
}

bool holds_tensors(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  for (const c10::TypePtr& inner : type->containedTypes()) {
    if (holds_tensors(inner)) return true;
  }
  return false;
}

OperatorFacts find_facts(const c10::OperatorHandle& operation) {
  OperatorFacts facts;
  const c10::FunctionSchema& schema = operation.schema();
  for (const c10::Argument& value : schema.returns())
    facts.leaves_trace = facts.leaves_trace || holds_tensors(value.type());
  for (const c10::Argument& argument : schema.arguments()) {
    const bool changes = changes_unannounced(argument) ||
        (argument.alias_info() != nullptr && argument.alias_info()->isWrite() &&
         !only_marks(schema));
    facts.changes_argument.push_back(changes);
    facts.leaves_trace = facts.leaves_trace || changes;
  }
  facts.is_random = operation.hasTag(at::Tag::nondeterministic_seeded);
  return facts;
}

// Facts are cached per thread.
const OperatorFacts& facts_of(const c10::OperatorHandle& operation) {
  // Thread-local so that the lookup, once per operator, takes no lock.
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorFacts>
      known;
  const auto [entry, is_new] = known.try_emplace(&operation.schema());
  if (is_new) entry->second = find_facts(operation);
  return entry->second;
}

// Random generator states, which attention kernels save unwritten if they drop
// nothing.
bool is_generator_state(
    const c10::OperatorHandle& operation,
    const at::Tensor& tensor) {
  return tensor.numel() <= 2 &&
      at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) &&
      operation.schema().name().find("attention") != std::string::npos;
}

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                              : nullptr;
}

// Whether a keeper of an argument may draw random numbers.
bool has_random_keeper(const torch::jit::Stack& stack, std::size_t count) {
  return first_of(torch::jit::last(stack, count), [](const c10::IValue& value) {
    const GateEntry* const entry = entry_of(value);
    if (entry == nullptr) return false;
    return std::ranges::any_of(entry->watches, [](const TensorWatch& watch) {
      const auto* const random =
          dynamic_cast<const RandomKeeper*>(watch.keeper.get());
      return random != nullptr && random->draws_random_numbers();
    });
  });
}

}  // namespace

/// The hooks in an autograd node that stand for a saved tensor.
class Tape::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<Tape> tape) : tape_(std::move(tape)) {}
  ~Hooks() override {
    if (!kept_.defined()) tape_->forget(place_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    const c10::impl::ExcludeDispatchKeyGuard exclude(kRecordingKey);
    place_ = tape_->pack(tensor);
    if (place_.kind == Place::Kind::kept) kept_ = tensor.variable_data();
  }
  at::Tensor call_unpack_hook() override {
    return kept_.defined() ? kept_ : tape_->unpack(place_);
  }

 private:
  std::shared_ptr<Tape> tape_;
  Place place_ = {};
  at::Tensor kept_;
};

Tape::Tape(
    std::string name,
    const CheckpointOptions& options,
    std::shared_ptr<ComparedOperators> compared)
    : name_(std::move(name)),
      options_(options),
      compared_(std::move(compared)) {}

Tape::~Tape() = default;

std::unique_ptr<torch::autograd::SavedVariableHooks> Tape::make_hooks() {
  return std::make_unique<Hooks>(shared_from_this());
}

bool Tape::begin(
    const c10::OperatorHandle& operation,
    const torch::jit::Stack& stack) {
  const OperatorFacts& facts = facts_of(operation);
  if (!facts.leaves_trace) return false;
  const std::lock_guard lock(mutex_);
  const std::size_t count = facts.changes_argument.size();
  Operator entry{
      operation,
      torch::jit::Stack(
          stack.end() - static_cast<std::ptrdiff_t>(count), stack.end())};
  entry.grad_mode = at::GradMode::is_enabled();
  entry.autocast = AutocastState::now();
  if (facts.is_random || has_random_keeper(stack, count)) {
    entry.generator = generator_of(stack, count);
    entry.random_state = state_of(entry.generator);
  }
  // FNV-1a.
  history_ =
      (history_ ^ reinterpret_cast<std::uintptr_t>(&operation.schema())) *
      1099511628211ULL;
  entry.history = history_;
  for (std::size_t i = 0; i < count; ++i) {
    c10::IValue& argument = entry.arguments[i];
    if (argument.isTensor()) {
      const at::Tensor tensor = argument.toTensor();
      if (!tensor.defined()) continue;
      if (facts.changes_argument[i]) keep_before_change(tensor);
      record_input(entry, tensor, i, std::nullopt);
      argument = c10::IValue();
    } else if (argument.isTensorList() || argument.isOptionalTensorList()) {
      c10::List<c10::IValue> items = argument.toList().copy();
      for (std::size_t item = 0; item < items.size(); ++item) {
        const c10::IValue value = items.get(item);
        if (!value.isTensor() || !value.toTensor().defined()) continue;
        if (facts.changes_argument[i]) keep_before_change(value.toTensor());
        record_input(entry, value.toTensor(), i, item);
        items.set(item, at::Tensor());
      }
      argument = c10::IValue(std::move(items));
    }
  }
  operators_.push_back(std::move(entry));
  is_in_operator_ = true;
  return true;
}

void Tape::end(const torch::jit::Stack& stack) {
  const std::lock_guard lock(mutex_);
  is_in_operator_ = false;
  Operator& entry = operators_.back();
  const std::size_t count = entry.operation.schema().returns().size();
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& value = stack[stack.size() - count + i];
    if (value.isTensor()) {
      record_output(entry, value.toTensor(), i, std::nullopt);
    } else if (value.isTensorList()) {
      const auto items = value.toListRef();
      for (std::size_t item = 0; item < items.size(); ++item)
        record_output(entry, items[item].toTensor(), i, item);
    }
  }
}

void Tape::cancel() {
  const std::lock_guard lock(mutex_);
  is_in_operator_ = false;
  operators_.back().has_failed = true;
}

void Tape::rename(const at::Tensor& made, const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(made.unsafeGetTensorImpl());
  if (found == known_.end()) return;
  const Place place = found->second.place;
  known_.insert_or_assign(
      tensor.unsafeGetTensorImpl(),
      Known{place, Known::Weak(tensor.getIntrusivePtr())});
}

Tape::Place Tape::place_of(const at::Tensor& tensor) {
  c10::TensorImpl* const address = tensor.unsafeGetTensorImpl();
  const auto found = known_.find(address);
  if (found != known_.end()) return found->second.place;
  const Place place{Place::Kind::outside, outside_.size()};
  Outside outside;
  outside.requires_grad = tensor.requires_grad();
  // Parameters are kept as they are; other tensors without their graph.
  outside.tensor = tensor.is_leaf() && tensor.requires_grad()
      ? tensor
      : tensor.variable_data();
  if (!tensor.is_inference()) {
    outside.counter = address->version_counter();
    outside.version = outside.counter.current_version();
  }
  if (const auto* const storage = storage_of(tensor))
    outside_storages_.try_emplace(storage);
  outside_.push_back(std::move(outside));
  known_.emplace(address, Known{place, Known::Weak(tensor.getIntrusivePtr())});
  return place;
}

void Tape::record_input(
    Operator& entry,
    const at::Tensor& tensor,
    std::size_t argument,
    std::optional<std::size_t> item) {
  entry.inputs.push_back(
      {argument, item, place_of(tensor), tensor.requires_grad()});
}

void Tape::record_output(
    Operator& entry,
    const at::Tensor& tensor,
    std::size_t value,
    std::optional<std::size_t> item) {
  if (!tensor.defined()) return;
  const auto [known, is_new] = known_.try_emplace(
      tensor.unsafeGetTensorImpl(),
      Known{
          Place{Place::Kind::made, num_made_},
          Known::Weak(tensor.getIntrusivePtr())});
  if (!is_new) return;
  entry.outputs.push_back({value, item, num_made_++});
}

void Tape::keep_before_change(const at::Tensor& tensor) {
  const c10::StorageImpl* const storage = storage_of(tensor);
  if (storage == nullptr) return;
  if (const auto savings = savings_of_.find(storage);
      savings != savings_of_.end()) {
    for (const Place& place : savings->second.places)
      saved_at(place).is_changed_later = true;
  }
  place_of(tensor);
  const auto found = outside_storages_.find(storage);
  if (found == outside_storages_.end() || found->second) return;
  const at::NoGradGuard no_grad;
  const auto items =
      static_cast<std::int64_t>(storage->nbytes() / tensor.itemsize());
  found->second = copies_.size();
  copies_.push_back(
      at::as_strided(tensor.variable_data(), {items}, {1}, 0).clone());
}

Tape::Place Tape::pack(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return {Place::Kind::kept};
  if (!is_in_operator_) {
    // The user's own autograd node saves the tensor. Tensors that the segment
    // made are recomputed; others are kept.
    const auto found = known_.find(tensor.unsafeGetTensorImpl());
    if (found == known_.end() || found->second.place.kind != Place::Kind::made)
      return {Place::Kind::kept};
    ++num_wanted_;
    ++saved_made_[found->second.place.index].num_hooks;
    return found->second.place;
  }
  Operator& entry = operators_.back();
  const Place place{
      Place::Kind::by_operator, operators_.size() - 1, entry.saved.size()};
  ++num_wanted_;
  Saved saved;
  saved.num_hooks = 1;
  const c10::StorageImpl* const storage = storage_of(tensor);
  const bool is_outside =
      storage != nullptr && outside_storages_.contains(storage);
  const bool compares = options_.compare == CompareRecomputed::always ||
      (options_.compare == CompareRecomputed::first &&
       !compared_->has(entry.history));
  if (compares && !is_outside && !is_generator_state(entry.operation, tensor))
    saved.fingerprint = fingerprint_of(tensor);
  entry.saved.push_back(std::move(saved));
  if (storage != nullptr) {
    savings_of_
        .try_emplace(
            storage,
            Savings{
                tensor.unsafeGetTensorImpl()
                    ->unsafe_storage()
                    .getWeakStorageImpl(),
                {}})
        .first->second.places.push_back(place);
  }
  return place;
}

void Tape::close() {
  const c10::impl::ExcludeDispatchKeyGuard exclude(kRecordingKey);
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  find_copies();
  known_.clear();
  savings_of_.clear();
  outside_storages_.clear();
  find_last_uses();
  if (options_.offload_inputs) offload_outside();
}

void Tape::find_copies() {
  for (Outside& outside : outside_) {
    const auto* const storage = storage_of(outside.tensor);
    if (storage != nullptr) outside.copy = outside_storages_.at(storage);
  }
}

void Tape::find_last_uses() {
  std::vector<std::optional<std::size_t>> last(num_made_);
  std::vector<bool> is_used(outside_.size());
  std::size_t num_needed = 0;
  for (std::size_t o = 0; o < operators_.size(); ++o) {
    if (!operators_[o].saved.empty()) num_needed = o + 1;
    for (const Output& output : operators_[o].outputs) {
      last[output.made] = o;
      if (saved_made_.contains(output.made)) num_needed = o + 1;
    }
  }
  operators_.erase(
      operators_.begin() + static_cast<std::ptrdiff_t>(num_needed),
      operators_.end());
  for (std::size_t o = 0; o < operators_.size(); ++o) {
    for (const Input& input : operators_[o].inputs) {
      if (input.place.kind == Place::Kind::made) last[input.place.index] = o;
      if (input.place.kind == Place::Kind::outside)
        is_used[input.place.index] = true;
    }
  }
  for (std::size_t made = 0; made < last.size(); ++made) {
    if (last[made] && *last[made] < operators_.size())
      operators_[*last[made]].last_uses.push_back(made);
  }
  for (std::size_t i = 0; i < outside_.size(); ++i) {
    if (!is_used[i]) outside_[i] = Outside();
  }
}

void Tape::offload_outside() {
  for (Outside& outside : outside_) {
    const at::Tensor& tensor = outside.tensor;
    const bool is_parameter = tensor.defined() && tensor.is_leaf() &&
        outside.requires_grad && tensor.requires_grad();
    if (!tensor.defined() || tensor.is_cpu() || is_parameter || outside.copy ||
        !HostCopy::is_possible(tensor)) {
      continue;
    }
    outside.on_host.emplace(tensor, /*pin_memory=*/true);
    outside.tensor = at::Tensor();
  }
}

Tape::Saved& Tape::saved_at(const Place& place) {
  if (place.kind == Place::Kind::made) return saved_made_.at(place.index);
  return operators_.at(place.index).saved.at(place.number);
}

at::Tensor Tape::unpack(const Place& place) {
  const std::lock_guard lock(mutex_);
  if (!saved_at(place).value.defined()) replay();
  return saved_at(place).value;
}

void Tape::forget(const Place& place) {
  if (place.kind == Place::Kind::nowhere) return;
  const std::lock_guard lock(mutex_);
  Saved& saved = saved_at(place);
  if (--saved.num_hooks == 0) saved.value = at::Tensor();
  if (--num_wanted_ > 0 || !is_closed_) return;
  operators_.clear();
  outside_.clear();
  copies_.clear();
}

}  // namespace accelerate::detail
