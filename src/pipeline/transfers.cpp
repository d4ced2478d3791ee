#include "pipeline/transfers.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"

namespace accelerate::detail {

namespace {

// Size of a signature's first message: the total count, and the first numbers.
// A second message has the rest.
constexpr std::int64_t kSignatureNumbers = 64;
// The most tensors between two stages. Each value has a tag per tensor, and one
// per message of its signature.
constexpr int kMostTensors = 1022;
constexpr int kTagsPerValue = kMostTensors + 2;
// Number of consecutive steps whose messages have different tags.
constexpr std::int64_t kStepsApart = 4;

bool can_require_grad(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) ||
      at::isComplexType(tensor.scalar_type());
}

}  // namespace

StageTransfers::StageTransfers(Group&& group, at::Device device)
    : group_(std::move(group)), device_(device) {}

void StageTransfers::begin_step(
    const PipelineSchedule& schedule,
    const StepMode& mode) {
  schedule_ = &schedule;
  mode_ = mode;
  ++num_steps_;
}

void StageTransfers::send_outputs(
    const StageValue& value,
    const PipelineValue& outputs) {
  const int peer = rank_of(value.stage + 1);
  const ValueSignature signature = signature_of(outputs, mode_.trains);
  if (peer == group_.rank()) {
    PipelineValue inputs{{}, outputs.structure};
    for (std::size_t i = 0; i < outputs.tensors.size(); ++i) {
      const at::Tensor& tensor = outputs.tensors[i];
      inputs.tensors.push_back(
          tensor.defined() ? tensor.detach().requires_grad_(
                                 signature.tensors[i].requires_grad)
                           : tensor);
    }
    handed_over_[{value.stage, value.micro_batch, Direction::outputs}] =
        std::move(inputs);
    return;
  }
  announce(value, signature, peer);
  const int tag = tag_of(value, Direction::outputs);
  for (std::size_t i = 0; i < outputs.tensors.size(); ++i)
    send(outputs.tensors[i], peer, tag + 2 + static_cast<int>(i));
}

// Sends the signature to the other rank, unless it knows it already.
void StageTransfers::announce(
    const StageValue& value,
    const ValueSignature& signature,
    int peer) {
  if (mode_.shapes_may_change) return send_signature(value, signature, peer);
  const auto [known, is_new] = sent_.try_emplace(key_of(value), signature);
  if (is_new) return send_signature(value, signature, peer);
  if (known->second == signature) return;
  throw ConfigError(format(
      "[pipeline] stage {} returned {} for micro-batch {}, but {} for the "
      "first one of {} rows{}; set PipelineOptions::shapes_may_change, or give "
      "all micro-batches the same shapes",
      value.stage,
      text_of(signature),
      value.micro_batch,
      text_of(known->second),
      value.num_rows,
      known->second.tensors == signature.tensors ? ", nested otherwise" : ""));
}

void StageTransfers::expect_inputs(const StageValue& value) {
  const int peer = rank_of(value.stage - 1);
  if (peer == group_.rank() || mode_.shapes_may_change) return;
  const ValueKey key{value.stage, value.micro_batch, Direction::outputs};
  const auto known = received_.find(key_of(value));
  if (known == received_.end() || expected_.contains(key)) return;
  expected_[key] = receive_like(known->second, value, peer);
}

PipelineValue StageTransfers::receive_inputs(const StageValue& value) {
  const int peer = rank_of(value.stage - 1);
  if (peer == group_.rank()) {
    auto entry = handed_over_.extract(
        {value.stage - 1, value.micro_batch, Direction::outputs});
    return std::move(entry.mapped());
  }
  const ValueSignature signature = mode_.shapes_may_change
      ? receive_signature(value, peer)
      : known_signature(value, peer);
  const ValueKey key{value.stage, value.micro_batch, Direction::outputs};
  if (!expected_.contains(key))
    expected_[key] = receive_like(signature, value, peer);
  PipelineValue inputs{{}, signature.structure};
  auto messages = std::move(expected_.extract(key).mapped());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    wait(messages[i]);
    at::Tensor& tensor = messages[i].tensor;
    if (tensor.defined())
      tensor.requires_grad_(signature.tensors[i].requires_grad);
    inputs.tensors.push_back(std::move(tensor));
  }
  return inputs;
}

void StageTransfers::send_gradients(
    const StageValue& value,
    const PipelineTensors& gradients) {
  const int peer = rank_of(value.stage - 1);
  if (peer == group_.rank()) {
    handed_over_[{value.stage, value.micro_batch, Direction::gradients}] = {
        gradients, {}};
    return;
  }
  const int tag = tag_of(value, Direction::gradients);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    send(gradients[i], peer, tag + 2 + static_cast<int>(i));
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
        tag + 2 + static_cast<int>(i)));
  }
  expected_[key] = std::move(messages);
}

PipelineTensors StageTransfers::receive_gradients(
    const StageValue& value,
    const PipelineTensors& like) {
  if (rank_of(value.stage + 1) == group_.rank()) {
    auto entry = handed_over_.extract(
        {value.stage + 1, value.micro_batch, Direction::gradients});
    return std::move(entry.mapped().tensors);
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
  // Outputs are identified by the stage that produces them, gradients by the
  // stage that computes them.
  const int place = (value.stage * 2 + kind) * schedule_->num_micro_batches +
      value.micro_batch;
  return (place * static_cast<int>(kStepsApart) + step) * kTagsPerValue;
}

void StageTransfers::send(const at::Tensor& tensor, int peer, int tag) {
  if (!tensor.defined() || tensor.numel() == 0) return;
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
  if (!tensor.defined() || tensor.numel() == 0) return {{}, tensor, peer};
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
    const ValueSignature& signature,
    int peer) {
  if (signature.tensors.size() > static_cast<std::size_t>(kMostTensors)) {
    throw ConfigError(format(
        "[pipeline] stage {} returned {} tensors; at most {} can be handed on: "
        "stack some, or split the model elsewhere",
        value.stage,
        signature.tensors.size(),
        kMostTensors));
  }
  std::vector<std::int64_t> numbers = numbers_of(signature);
  const auto count = static_cast<std::int64_t>(numbers.size());
  numbers.insert(numbers.begin(), count);
  numbers.resize(
      static_cast<std::size_t>(std::max(count + 1, kSignatureNumbers)), 0);
  const at::Tensor all = at::tensor(numbers, at::kLong).to(device_);
  const int tag = tag_of(value, Direction::outputs);
  send(all.narrow(0, 0, kSignatureNumbers), peer, tag);
  const std::int64_t rest = all.size(0) - kSignatureNumbers;
  send(all.narrow(0, kSignatureNumbers, rest), peer, tag + 1);
}

ValueSignature StageTransfers::receive_signature(
    const StageValue& value,
    int peer) {
  const int tag = tag_of(
      {value.stage - 1, value.micro_batch, value.num_rows}, Direction::outputs);
  std::vector<std::int64_t> numbers;
  const auto take = [&](std::int64_t count, int from) {
    const Message message = receive(
        at::empty({count}, at::TensorOptions(at::kLong).device(device_)),
        peer,
        from);
    wait(message);
    const at::Tensor found = message.tensor.cpu();
    const auto* const first = found.const_data_ptr<std::int64_t>();
    numbers.insert(numbers.end(), first, first + count);
  };
  take(kSignatureNumbers, tag);
  const std::int64_t count = numbers.front();
  take(std::max<std::int64_t>(count + 1 - kSignatureNumbers, 0), tag + 1);
  return signature_in({numbers.begin() + 1, numbers.begin() + 1 + count});
}

const ValueSignature& StageTransfers::known_signature(
    const StageValue& value,
    int peer) {
  const auto known = received_.find(key_of(value));
  if (known != received_.end()) return known->second;
  return received_.emplace(key_of(value), receive_signature(value, peer))
      .first->second;
}

std::vector<StageTransfers::Message> StageTransfers::receive_like(
    const ValueSignature& signature,
    const StageValue& value,
    int peer) {
  const int tag = tag_of(
      {value.stage - 1, value.micro_batch, value.num_rows}, Direction::outputs);
  std::vector<Message> messages;
  for (std::size_t i = 0; i < signature.tensors.size(); ++i) {
    messages.push_back(receive(
        empty_like(signature.tensors[i], device_),
        peer,
        tag + 2 + static_cast<int>(i)));
  }
  return messages;
}

ValueSignature signature_of(const PipelineValue& value, bool trains) {
  ValueSignature signature{{}, value.structure};
  for (const at::Tensor& tensor : value.tensors) {
    if (!tensor.defined()) {
      signature.tensors.push_back({at::ScalarType::Undefined, false, {}});
      continue;
    }
    signature.tensors.push_back(
        {tensor.scalar_type(),
         trains && tensor.requires_grad() && can_require_grad(tensor),
         tensor.sizes().vec()});
  }
  return signature;
}

std::vector<std::int64_t> numbers_of(const ValueSignature& signature) {
  std::vector<std::int64_t> numbers{
      static_cast<std::int64_t>(signature.tensors.size())};
  for (const TensorSignature& tensor : signature.tensors) {
    numbers.push_back(static_cast<std::int64_t>(tensor.dtype));
    numbers.push_back(tensor.requires_grad ? 1 : 0);
    numbers.push_back(static_cast<std::int64_t>(tensor.sizes.size()));
    numbers.insert(numbers.end(), tensor.sizes.begin(), tensor.sizes.end());
  }
  for (const char part : signature.structure)
    numbers.push_back(static_cast<unsigned char>(part));
  return numbers;
}

ValueSignature signature_in(const std::vector<std::int64_t>& numbers) {
  auto next = numbers.begin();
  ValueSignature signature;
  signature.tensors.resize(static_cast<std::size_t>(*next++));
  for (TensorSignature& tensor : signature.tensors) {
    tensor.dtype = static_cast<at::ScalarType>(*next++);
    tensor.requires_grad = *next++ != 0;
    const std::int64_t dim = *next++;
    tensor.sizes.assign(next, next + dim);
    next += dim;
  }
  for (; next != numbers.end(); ++next)
    signature.structure += static_cast<char>(*next);
  return signature;
}

std::string text_of(const ValueSignature& signature) {
  std::vector<std::string> texts;
  for (const TensorSignature& tensor : signature.tensors) {
    texts.push_back(
        tensor.dtype == at::ScalarType::Undefined
            ? std::string("no value")
            : format(
                  "{} {}{}",
                  c10::toString(tensor.dtype),
                  at::IntArrayRef(tensor.sizes),
                  tensor.requires_grad ? "" : " without gradient"));
  }
  return texts.empty() ? "nothing" : join(texts, ", ");
}

at::Tensor empty_like(const TensorSignature& signature, at::Device device) {
  if (signature.dtype == at::ScalarType::Undefined) return {};
  return at::empty(
      signature.sizes, at::TensorOptions(signature.dtype).device(device));
}

}  // namespace accelerate::detail
