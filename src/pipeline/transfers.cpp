#include "pipeline/transfers.h"

#include <utility>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Views each tensor of a value so that it is contiguous if it has the
// signature's strides.
PipelineTensors in_memory_order(
    PipelineTensors tensors,
    const ValueSignature& signature) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined())
      tensors[i] = in_memory_order(tensors[i], signature.tensors[i]);
  }
  return tensors;
}

}  // namespace

StageTransfers::StageTransfers(
    Group&& group,
    at::Device device,
    const PipelineStagePlaces& places,
    bool trains)
    : device_(device), messenger_(std::move(group), device, places, trains) {}

void StageTransfers::begin_step(
    const PipelineSchedule& schedule,
    const std::vector<std::int64_t>& num_rows,
    const StepMode& mode) {
  schedule_ = &schedule;
  num_rows_ = num_rows;
  mode_ = mode;
  messenger_.begin_step(schedule.num_micro_batches);
  coming_.clear();
  for (const int sender : messenger_.edge_senders()) {
    coming_[sender] =
        messages_of(schedule, {sender, messenger_.rank()}, mode.trains);
  }
}

void StageTransfers::send_outputs(
    const StageValue& value,
    const PipelineValue& outputs) {
  const StageMessage message = outputs_of(value.stage, value);
  const int peer = rank_of(value.stage + 1);
  auto signature = std::make_shared<const ValueSignature>(
      signature_of(outputs, mode_.trains));
  if (peer == messenger_.rank()) {
    PipelineValue inputs{{}, outputs.structure};
    for (std::size_t i = 0; i < outputs.tensors.size(); ++i) {
      const at::Tensor& tensor = outputs.tensors[i];
      inputs.tensors.push_back(
          tensor.defined() ? tensor.detach().requires_grad_(
                                 signature->tensors[i].requires_grad)
                           : tensor);
    }
    handed_over_[message] = std::move(inputs);
    return;
  }
  signature = announce(message, signature, peer);
  messenger_.send(message, peer, in_memory_order(outputs.tensors, *signature));
  if (!mode_.trains) return;
  std::vector<Room>& rooms = awaited_[gradients_of(value.stage + 1, value)];
  for (const at::Tensor& tensor : outputs.tensors) {
    if (tensor.defined() && tensor.requires_grad())
      rooms.push_back({tensor.sizes().vec(), tensor.options()});
  }
}

std::shared_ptr<const ValueSignature> StageTransfers::announce(
    const StageMessage& message,
    const std::shared_ptr<const ValueSignature>& signature,
    int peer) {
  if (!mode_.shapes_may_change) {
    const auto [entry, is_new] = sent_.try_emplace(key_of(message), signature);
    if (!is_new) {
      require_like(*entry->second, *signature, message);
      return entry->second;
    }
  }
  if (signature->tensors.size() > static_cast<std::size_t>(kMostStageTensors)) {
    throw ConfigError(format(
        "[pipeline] stage {} returned {} tensors; at most {} can be handed on: "
        "stack some, or split the model elsewhere",
        message.stage,
        signature->tensors.size(),
        kMostStageTensors));
  }
  messenger_.send_numbers(message, peer, numbers_of(*signature));
  return signature;
}

void StageTransfers::require_like(
    const ValueSignature& known,
    const ValueSignature& found,
    const StageMessage& message) const {
  if (known == found) return;
  throw ConfigError(format(
      "[pipeline] stage {} returned {} for micro-batch {}, but {} for the "
      "first one of {} rows{}; set PipelineOptions::shapes_may_change, or give "
      "all micro-batches the same shapes",
      message.stage,
      text_of(found),
      message.micro_batch,
      text_of(known),
      rows_of(message),
      known.tensors == found.tensors ? ", nested otherwise" : ""));
}

void StageTransfers::expect_inputs(const StageValue& value) {
  if (rank_of(value.stage - 1) == messenger_.rank()) return;
  expect(outputs_of(value.stage - 1, value), /*waits=*/false);
}

PipelineValue StageTransfers::receive_inputs(const StageValue& value) {
  const StageMessage message = outputs_of(value.stage - 1, value);
  if (rank_of(message.stage) == messenger_.rank())
    return std::move(handed_over_.extract(message).mapped());
  Expected expected = take(message);
  const ValueSignature& signature = *expected.signature;
  PipelineValue inputs{std::move(expected.tensors), signature.structure};
  for (std::size_t i = 0; i < inputs.tensors.size(); ++i) {
    if (inputs.tensors[i].defined())
      inputs.tensors[i].requires_grad_(signature.tensors[i].requires_grad);
  }
  return inputs;
}

void StageTransfers::send_gradients(
    const StageValue& value,
    const PipelineTensors& gradients) {
  const StageMessage message = gradients_of(value.stage, value);
  const int peer = rank_of(value.stage - 1);
  if (peer == messenger_.rank()) {
    handed_over_[message] = {gradients, {}};
  } else {
    messenger_.send(message, peer, gradients);
  }
}

void StageTransfers::expect_gradients(const StageValue& value) {
  if (rank_of(value.stage + 1) == messenger_.rank()) return;
  expect(gradients_of(value.stage + 1, value), /*waits=*/false);
}

PipelineTensors StageTransfers::receive_gradients(const StageValue& value) {
  const StageMessage message = gradients_of(value.stage + 1, value);
  if (rank_of(message.stage) == messenger_.rank())
    return std::move(handed_over_.extract(message).mapped().tensors);
  Expected expected = take(message);
  const auto rooms = awaited_.extract(message);
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    at::Tensor& tensor = expected.tensors[i];
    tensor = tensor.to(rooms.mapped()[i].options.device());
  }
  return std::move(expected.tensors);
}

void StageTransfers::abandon() noexcept {
  messenger_.abandon();
  expected_.clear();
  handed_over_.clear();
  awaited_.clear();
  coming_.clear();
}

StageTransfers::SignatureKey StageTransfers::key_of(
    const StageMessage& message) const {
  return {message.stage, rows_of(message), mode_.trains, mode_.is_evaluation};
}

void StageTransfers::expect(const StageMessage& message, bool waits) {
  if (expected_.contains(message)) return;
  const auto order = coming_.find(rank_of(message.stage));
  if (order == coming_.end()) {
    begin_to_receive(message, waits);
    return;
  }
  std::deque<StageMessage>& coming = order->second;
  while (!expected_.contains(message)) {
    if (coming.empty() || !begin_to_receive(coming.front(), waits)) return;
    coming.pop_front();
  }
}

StageTransfers::Expected StageTransfers::take(const StageMessage& message) {
  expect(message, /*waits=*/true);
  const auto entry = expected_.extract(message);
  if (entry.empty()) {
    throw InternalError(format(
        "[pipeline] {} for micro-batch {} cannot be received: nothing was sent "
        "for it",
        name_of(message),
        message.micro_batch));
  }
  Expected expected = std::move(entry.mapped());
  expected.messages.wait();
  return expected;
}

bool StageTransfers::begin_to_receive(const StageMessage& message, bool waits) {
  Expected expected;
  PipelineTensors in_order;
  if (message.kind == Kind::outputs) {
    expected.signature = signature_for(message, waits);
    if (expected.signature == nullptr) return false;
    for (const TensorSignature& each : expected.signature->tensors)
      expected.tensors.push_back(empty_like(each, device_));
    in_order = in_memory_order(expected.tensors, *expected.signature);
  } else {
    const auto rooms = awaited_.find(message);
    if (rooms == awaited_.end()) return false;
    for (const Room& room : rooms->second) {
      expected.tensors.push_back(at::empty(
          room.sizes,
          room.options.device(messenger_.device_for(room.options))));
    }
    in_order = expected.tensors;
  }
  expected.messages =
      messenger_.receive(message, rank_of(message.stage), in_order);
  expected_[message] = std::move(expected);
  return true;
}

std::shared_ptr<const ValueSignature> StageTransfers::signature_for(
    const StageMessage& message,
    bool waits) {
  if (mode_.shapes_may_change)
    return waits ? receive_signature(message) : nullptr;
  const auto known = received_.find(key_of(message));
  if (known != received_.end()) return known->second;
  if (!waits) return nullptr;
  return received_.emplace(key_of(message), receive_signature(message))
      .first->second;
}

std::shared_ptr<const ValueSignature> StageTransfers::receive_signature(
    const StageMessage& message) const {
  return std::make_shared<const ValueSignature>(signature_in(
      messenger_.receive_numbers(message, rank_of(message.stage))));
}

}  // namespace accelerate::detail
