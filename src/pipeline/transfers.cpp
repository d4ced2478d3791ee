#include "pipeline/transfers.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/strides.h>

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

std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  const auto strides = c10::contiguous_strides(tensor.sizes());
  return {strides.begin(), strides.end()};
}

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

// Adds tensors with consecutive tags, without undefined ones.
void add(
    std::vector<PeerMessage>& messages,
    const PipelineTensors& tensors,
    int peer,
    int first_tag) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const int tag = first_tag + static_cast<int>(i);
    if (tensors[i].defined())
      messages.push_back({tensors[i].detach().contiguous(), peer, tag});
  }
}

ThrowFailure lost(int peer) {
  return [peer](const std::exception& error) {
    throw LostPeer(peer, first_line_of(error));
  };
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
  std::vector<PeerMessage> messages = announce(value, signature, peer);
  const ValueSignature& announced =
      mode_.shapes_may_change ? signature : sent_.at(key_of(value));
  add(messages,
      in_memory_order(outputs.tensors, announced),
      peer,
      tag_of(value, Direction::outputs) + 2);
  send(
      format("sending the outputs of stage {}", value.stage),
      std::move(messages));
}

std::vector<PeerMessage> StageTransfers::announce(
    const StageValue& value,
    const ValueSignature& signature,
    int peer) {
  if (mode_.shapes_may_change)
    return signature_messages(value, signature, peer);
  const auto [known, is_new] = sent_.try_emplace(key_of(value), signature);
  if (is_new) return signature_messages(value, signature, peer);
  if (known->second == signature) return {};
  throw ConfigError(format(
      "[pipeline] stage {} returned {} for micro-batch {}, but {} for the "
      "first one of {} rows{}; set PipelineOptions::shapes_may_change, or pad "
      "all micro-batches to the same shapes",
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
  Expected expected = std::move(expected_.extract(key).mapped());
  expected.messages.wait();
  inputs.tensors = std::move(expected.tensors);
  for (std::size_t i = 0; i < inputs.tensors.size(); ++i) {
    if (inputs.tensors[i].defined())
      inputs.tensors[i].requires_grad_(signature.tensors[i].requires_grad);
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
  std::vector<PeerMessage> messages;
  add(messages, gradients, peer, tag_of(value, Direction::gradients) + 2);
  send(
      format("sending the gradients of stage {}", value.stage),
      std::move(messages));
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
  PipelineTensors tensors;
  for (const at::Tensor& each : like)
    tensors.push_back(at::empty(each.sizes(), each.options()));
  expected_[key] = receive(
      format("receiving the gradients of stage {}", value.stage + 1),
      std::move(tensors),
      peer,
      tag + 2);
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
  Expected expected = std::move(expected_.extract(key).mapped());
  expected.messages.wait();
  return std::move(expected.tensors);
}

void StageTransfers::broadcast(const at::Tensor& tensor, int src) {
  if (group_.size() == 1 || tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  try {
    group_.impl()->connection->broadcast(tensor, src)->wait();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    lost(src)(error);
  }
}

void StageTransfers::end_step() {
  for (BegunExchange& each : leaving_) each.wait();
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

void StageTransfers::send(std::string what, std::vector<PeerMessage> messages) {
  if (messages.empty()) return;
  const int peer = messages.front().peer;
  while (!leaving_.empty() && leaving_.front().is_complete())
    leaving_.pop_front();
  leaving_.push_back(BegunExchange::messages(
      group_, std::move(what), std::move(messages), {}, lost(peer)));
}

StageTransfers::Expected StageTransfers::receive(
    std::string what,
    PipelineTensors tensors,
    int peer,
    int first_tag) const {
  std::vector<PeerMessage> messages;
  add(messages, tensors, peer, first_tag);
  return {
      std::move(tensors),
      BegunExchange::messages(
          group_, std::move(what), {}, std::move(messages), lost(peer))};
}

std::vector<PeerMessage> StageTransfers::signature_messages(
    const StageValue& value,
    const ValueSignature& signature,
    int peer) const {
  if (signature.tensors.size() > static_cast<std::size_t>(kMostTensors)) {
    throw ConfigError(format(
        "[pipeline] stage {} returned {} tensors, but can pass on at most {}: "
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
  // Host tensors, which no rank waits for its device to read.
  const at::Tensor all = at::tensor(numbers, at::kLong);
  std::vector<PeerMessage> messages;
  add(messages,
      all.split_with_sizes(
          {kSignatureNumbers, all.size(0) - kSignatureNumbers}),
      peer,
      tag_of(value, Direction::outputs));
  return messages;
}

ValueSignature StageTransfers::receive_signature(
    const StageValue& value,
    int peer) {
  const int tag = tag_of(
      {value.stage - 1, value.micro_batch, value.num_rows}, Direction::outputs);
  std::vector<std::int64_t> numbers;
  const auto take = [&](std::int64_t count, int from) {
    Expected expected = receive(
        format("receiving the shapes of stage {}", value.stage - 1),
        {at::empty({count}, at::kLong)},
        peer,
        from);
    expected.messages.wait();
    const auto* const first =
        expected.tensors.front().const_data_ptr<std::int64_t>();
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

StageTransfers::Expected StageTransfers::receive_like(
    const ValueSignature& signature,
    const StageValue& value,
    int peer) const {
  PipelineTensors tensors;
  for (const auto& each : signature.tensors)
    tensors.push_back(empty_like(each, device_));
  Expected expected = receive(
      format("receiving the outputs of stage {}", value.stage - 1),
      in_memory_order(tensors, signature),
      peer,
      tag_of(
          {value.stage - 1, value.micro_batch, value.num_rows},
          Direction::outputs) +
          2);
  expected.tensors = std::move(tensors);
  return expected;
}

ValueSignature signature_of(const PipelineValue& value, bool trains) {
  ValueSignature signature{{}, value.structure};
  for (const at::Tensor& tensor : value.tensors) {
    if (!tensor.defined()) {
      signature.tensors.push_back({at::ScalarType::Undefined, false, {}, {}});
      continue;
    }
    signature.tensors.push_back(
        {tensor.scalar_type(),
         trains && tensor.requires_grad() && can_require_grad(tensor),
         tensor.sizes().vec(),
         dense_strides(tensor)});
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
    numbers.insert(numbers.end(), tensor.strides.begin(), tensor.strides.end());
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
    tensor.strides.assign(next + dim, next + 2 * dim);
    next += 2 * dim;
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

at::Tensor in_memory_order(
    const at::Tensor& tensor,
    const TensorSignature& signature) {
  const auto& strides = signature.strides;
  std::vector<std::int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return strides[a] > strides[b];
  });
  return tensor.detach().permute(order);
}

at::Tensor empty_like(const TensorSignature& signature, at::Device device) {
  if (signature.dtype == at::ScalarType::Undefined) return {};
  return at::empty_strided(
      signature.sizes,
      signature.strides,
      at::TensorOptions(signature.dtype).device(device));
}

}  // namespace accelerate::detail
