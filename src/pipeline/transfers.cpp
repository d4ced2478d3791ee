#include "pipeline/transfers.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/collectives/group_impl.h"

namespace accelerate::detail {

namespace {

// Numbers in the message that tells what a stage hands on.
constexpr std::int64_t kSignatureSize = 512;
// Most tensors between two stages; number 0 of a value is its signature.
constexpr int kMostTensors = 63;
// Steps whose messages have different tags.
constexpr std::int64_t kStepsApart = 4;

bool can_require_grad(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) ||
      at::isComplexType(tensor.scalar_type());
}

StageSignature signature_of(const PipelineTensors& tensors, bool trains) {
  StageSignature signature;
  for (const at::Tensor& tensor : tensors) {
    signature.push_back(
        {tensor.scalar_type(),
         trains && tensor.requires_grad() && can_require_grad(tensor),
         tensor.sizes().vec()});
  }
  return signature;
}

std::string text_of(const StageSignature& signature) {
  std::vector<std::string> texts;
  for (const TensorSignature& tensor : signature) {
    texts.push_back(format(
        "{} {}{}",
        c10::toString(tensor.dtype),
        at::IntArrayRef(tensor.sizes),
        tensor.requires_grad ? "" : " without gradient"));
  }
  return texts.empty() ? "nothing" : join(texts, ", ");
}

at::Tensor empty_like(const TensorSignature& signature, at::Device device) {
  return at::empty(
      signature.sizes, at::TensorOptions(signature.dtype).device(device));
}

}  // namespace

StageTransfers::StageTransfers(
    Group&& group,
    at::Device device,
    bool shapes_may_change)
    : group_(std::move(group)),
      device_(device),
      shapes_may_change_(shapes_may_change) {}

void StageTransfers::begin_step(const PipelineSchedule& schedule, bool trains) {
  schedule_ = &schedule;
  trains_ = trains;
  ++num_steps_;
}

void StageTransfers::send_outputs(
    const StageValue& value,
    const PipelineTensors& outputs) {
  const int peer = rank_of(value.stage + 1);
  const StageSignature signature = signature_of(outputs, trains_);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined()) continue;
    throw ConfigError(format(
        "[pipeline] stage {} returned an undefined tensor as output {}; a "
        "stage hands on tensors",
        value.stage,
        i));
  }
  if (peer == group_.rank()) {
    PipelineTensors inputs;
    for (std::size_t i = 0; i < outputs.size(); ++i)
      inputs.push_back(
          outputs[i].detach().requires_grad_(signature[i].requires_grad));
    handed_over_[{value.stage, value.micro_batch, Direction::outputs}] =
        std::move(inputs);
    return;
  }
  const auto [known, is_new] = sent_.try_emplace(key_of(value), signature);
  if (is_new || shapes_may_change_) {
    known->second = signature;
    send_signature(value, signature, peer);
  } else if (known->second != signature) {
    throw ConfigError(format(
        "[pipeline] stage {} returned {} for micro-batch {}, but {} for the "
        "first one of {} rows; set PipelineOptions::shapes_may_change, or give "
        "all micro-batches the same shapes",
        value.stage,
        text_of(signature),
        value.micro_batch,
        text_of(known->second),
        value.num_rows));
  }
  const int tag = tag_of(value, Direction::outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    send(outputs[i], peer, tag + 1 + static_cast<int>(i));
}

void StageTransfers::expect_inputs(const StageValue& value) {
  const int peer = rank_of(value.stage - 1);
  if (peer == group_.rank() || shapes_may_change_) return;
  const ValueKey key{value.stage, value.micro_batch, Direction::outputs};
  const auto known = received_.find(key_of(value));
  if (known == received_.end() || expected_.contains(key)) return;
  expected_[key] = receive_like(known->second, value, peer);
}

PipelineTensors StageTransfers::receive_inputs(const StageValue& value) {
  const int peer = rank_of(value.stage - 1);
  if (peer == group_.rank()) {
    auto entry = handed_over_.extract(
        {value.stage - 1, value.micro_batch, Direction::outputs});
    return std::move(entry.mapped());
  }
  const ValueKey key{value.stage, value.micro_batch, Direction::outputs};
  if (!expected_.contains(key)) {
    auto known = received_.find(key_of(value));
    if (known == received_.end() || shapes_may_change_) {
      known =
          received_
              .insert_or_assign(key_of(value), receive_signature(value, peer))
              .first;
    }
    expected_[key] = receive_like(known->second, value, peer);
  }
  const StageSignature& signature = received_.at(key_of(value));
  PipelineTensors inputs;
  auto messages = std::move(expected_.extract(key).mapped());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    wait(messages[i]);
    inputs.push_back(
        messages[i].tensor.requires_grad_(signature[i].requires_grad));
  }
  return inputs;
}

void StageTransfers::send_gradients(
    const StageValue& value,
    const PipelineTensors& gradients) {
  const int peer = rank_of(value.stage - 1);
  if (peer == group_.rank()) {
    handed_over_[{value.stage, value.micro_batch, Direction::gradients}] =
        gradients;
    return;
  }
  const int tag = tag_of(value, Direction::gradients);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    send(gradients[i], peer, tag + 1 + static_cast<int>(i));
}

void StageTransfers::expect_gradients(
    const StageValue& value,
    const PipelineTensors& like) {
  const int peer = rank_of(value.stage + 1);
  const ValueKey key{value.stage, value.micro_batch, Direction::gradients};
  if (peer == group_.rank() || expected_.contains(key)) return;
  const int tag = tag_of(
      {value.stage + 1, value.micro_batch, value.num_rows},
      Direction::gradients);
  std::vector<Message> messages;
  for (std::size_t i = 0; i < like.size(); ++i) {
    messages.push_back(receive(
        at::empty(like[i].sizes(), like[i].options()),
        peer,
        tag + 1 + static_cast<int>(i)));
  }
  expected_[key] = std::move(messages);
}

PipelineTensors StageTransfers::receive_gradients(
    const StageValue& value,
    const PipelineTensors& like) {
  if (rank_of(value.stage + 1) == group_.rank()) {
    auto entry = handed_over_.extract(
        {value.stage + 1, value.micro_batch, Direction::gradients});
    return std::move(entry.mapped());
  }
  expect_gradients(value, like);
  const ValueKey key{value.stage, value.micro_batch, Direction::gradients};
  PipelineTensors gradients;
  const auto messages = std::move(expected_.extract(key).mapped());
  for (const Message& message : messages) {
    wait(message);
    gradients.push_back(message.tensor);
  }
  return gradients;
}

void StageTransfers::broadcast(const at::Tensor& tensor, int src) {
  if (group_.size() == 1 || tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  wait(
      {guarded(src, [&](Connection& c) { return c.broadcast(tensor, src); }),
       tensor,
       src});
}

void StageTransfers::end_step() {
  for (const Message& message : leaving_) wait(message);
  leaving_.clear();
}

void StageTransfers::abandon() {
  leaving_.clear();
  expected_.clear();
  handed_over_.clear();
  group_ = Group();
}

int StageTransfers::tag_of(const StageValue& value, Direction direction) const {
  const auto step = static_cast<int>(num_steps_ % kStepsApart);
  const int kind = direction == Direction::outputs ? 0 : 1;
  // Outputs are known by the stage that gives them, gradients by the one that
  // computes them.
  const int place = (value.stage * 2 + kind) * schedule_->num_micro_batches +
      value.micro_batch;
  return (place * static_cast<int>(kStepsApart) + step) * (kMostTensors + 1);
}

void StageTransfers::send(const at::Tensor& tensor, int peer, int tag) {
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor sent = tensor.detach().contiguous();
  while (!leaving_.empty() && leaving_.front().work->isCompleted())
    leaving_.pop_front();
  leaving_.push_back(
      {guarded(peer, [&](Connection& c) { return c.send(sent, peer, tag); }),
       sent,
       peer});
}

StageTransfers::Message
StageTransfers::receive(const at::Tensor& tensor, int peer, int tag) {
  if (tensor.numel() == 0) return {{}, tensor, peer};
  return {
      guarded(
          peer, [&](Connection& c) { return c.receive(tensor, peer, tag); }),
      tensor,
      peer};
}

Work StageTransfers::guarded(
    int peer,
    const std::function<Work(Connection&)>& begin) {
  Connection& connection = *group_.impl()->connection;
  try {
    Work work = begin(connection);
    connection.run_in_background();
    return work;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw LostPeer(peer, first_line_of(error));
  }
}

void StageTransfers::wait(const Message& message) {
  if (!message.work) return;
  try {
    message.work->wait();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw LostPeer(message.peer, first_line_of(error));
  }
}

void StageTransfers::send_signature(
    const StageValue& value,
    const StageSignature& signature,
    int peer) {
  std::vector<std::int64_t> numbers{
      static_cast<std::int64_t>(signature.size())};
  for (const TensorSignature& tensor : signature) {
    numbers.push_back(static_cast<std::int64_t>(tensor.dtype));
    numbers.push_back(tensor.requires_grad ? 1 : 0);
    numbers.push_back(static_cast<std::int64_t>(tensor.sizes.size()));
    numbers.insert(numbers.end(), tensor.sizes.begin(), tensor.sizes.end());
  }
  if (signature.size() > static_cast<std::size_t>(kMostTensors) ||
      numbers.size() > static_cast<std::size_t>(kSignatureSize)) {
    throw ConfigError(format(
        "[pipeline] stage {} returned {} tensors; at most {} can be handed on: "
        "stack some, or split the model elsewhere",
        value.stage,
        signature.size(),
        kMostTensors));
  }
  numbers.resize(kSignatureSize, 0);
  send(
      at::tensor(numbers, at::kLong).to(device_),
      peer,
      tag_of(value, Direction::outputs));
}

StageSignature StageTransfers::receive_signature(
    const StageValue& value,
    int peer) {
  const Message message = receive(
      at::empty({kSignatureSize}, at::TensorOptions(at::kLong).device(device_)),
      peer,
      tag_of(
          {value.stage - 1, value.micro_batch, value.num_rows},
          Direction::outputs));
  wait(message);
  const at::Tensor numbers = message.tensor.cpu();
  const auto* next = numbers.const_data_ptr<std::int64_t>();
  StageSignature signature(static_cast<std::size_t>(*next++));
  for (TensorSignature& tensor : signature) {
    tensor.dtype = static_cast<at::ScalarType>(*next++);
    tensor.requires_grad = *next++ != 0;
    const std::int64_t dim = *next++;
    tensor.sizes.assign(next, next + dim);
    next += dim;
  }
  return signature;
}

std::vector<StageTransfers::Message> StageTransfers::receive_like(
    const StageSignature& signature,
    const StageValue& value,
    int peer) {
  const int tag = tag_of(
      {value.stage - 1, value.micro_batch, value.num_rows}, Direction::outputs);
  std::vector<Message> messages;
  for (std::size_t i = 0; i < signature.size(); ++i) {
    messages.push_back(receive(
        empty_like(signature[i], device_),
        peer,
        tag + 1 + static_cast<int>(i)));
  }
  return messages;
}

}  // namespace accelerate::detail
