#include "pipeline/stage_messenger.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"

namespace accelerate::detail {

namespace {

// Size of the first message with numbers: how many there are, and the first
// ones. A second message has the rest.
constexpr std::int64_t kFirstNumbers = 64;
// Each value has a tag per tensor, and one per message with numbers.
constexpr int kTagsPerValue = kMostStageTensors + 2;
// Number of consecutive steps whose messages have different tags.
constexpr std::int64_t kStepsApart = 4;
// The first stage sends no gradients, so their tag is free.
constexpr StageMessage kEndOfStep{0, 0, StageMessage::Kind::gradients};

// Messages with consecutive tags, without undefined tensors.
std::vector<PeerMessage>
messages_with(const PipelineTensors& tensors, int peer, int first_tag) {
  std::vector<PeerMessage> messages;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const int tag = first_tag + static_cast<int>(i);
    if (tensors[i].defined())
      messages.push_back({tensors[i].detach().contiguous(), peer, tag});
  }
  return messages;
}

ThrowFailure lost(int peer) {
  return [peer](const std::exception& error) {
    throw LostPeer(peer, first_line_of(error));
  };
}

}  // namespace

StageMessenger::StageMessenger(
    Group&& group,
    at::Device device,
    const PipelineStagePlaces& places,
    bool trains)
    : group_(std::move(group)),
      device_(device),
      edges_(group_, device, stage_edges(places, trains)) {}

std::vector<int> StageMessenger::edge_senders() const {
  std::vector<int> senders;
  for (const auto& [edge, group] : edges_.groups()) {
    if (edge.second == group_.rank()) senders.push_back(edge.first);
  }
  return senders;
}

void StageMessenger::begin_step(int num_micro_batches) {
  num_micro_batches_ = num_micro_batches;
  ++num_steps_;
}

void StageMessenger::send(
    const StageMessage& message,
    int peer,
    PipelineTensors tensors) {
  const std::string what = format("sending {}", name_of(message));
  if (edges_.empty()) {
    keep(BegunExchange::messages(
        group_,
        what,
        messages_with(tensors, peer, tag_of(message) + 2),
        {},
        lost(peer)));
    return;
  }
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor.detach().to(device_);
  }
  keep(BegunExchange::exchange(
      edges_.group_of({group_.rank(), peer}),
      what,
      messages_with(tensors, kEdgeReceiver, 0),
      {},
      lost(peer)));
}

BegunExchange StageMessenger::receive(
    const StageMessage& message,
    int peer,
    const PipelineTensors& tensors) const {
  const std::string what = format("receiving {}", name_of(message));
  if (edges_.empty()) {
    return BegunExchange::messages(
        group_,
        what,
        {},
        messages_with(tensors, peer, tag_of(message) + 2),
        lost(peer));
  }
  return BegunExchange::exchange(
      edges_.group_of({peer, group_.rank()}),
      what,
      {},
      messages_with(tensors, kEdgeSender, 0),
      lost(peer));
}

void StageMessenger::send_numbers(
    const StageMessage& message,
    int peer,
    const std::vector<std::int64_t>& numbers) {
  std::vector<std::int64_t> told = numbers;
  const auto count = static_cast<std::int64_t>(numbers.size());
  told.insert(told.begin(), count);
  told.resize(static_cast<std::size_t>(std::max(count + 1, kFirstNumbers)), 0);
  // Host tensors, which no rank waits for its device to read.
  const at::Tensor all = at::tensor(told, at::kLong);
  keep(BegunExchange::messages(
      group_,
      format("sending the shapes of {}", name_of(message)),
      messages_with(
          all.split_with_sizes({kFirstNumbers, all.size(0) - kFirstNumbers}),
          peer,
          tag_of(message)),
      {},
      lost(peer)));
}

std::vector<std::int64_t> StageMessenger::receive_numbers(
    const StageMessage& message,
    int peer) const {
  std::vector<std::int64_t> numbers;
  const auto take = [&](std::int64_t count, int tag) {
    const at::Tensor told = at::empty({count}, at::kLong);
    BegunExchange::messages(
        group_,
        format("receiving the shapes of {}", name_of(message)),
        {},
        {{told, peer, tag}},
        lost(peer))
        .wait();
    const auto* const first = told.const_data_ptr<std::int64_t>();
    numbers.insert(numbers.end(), first, first + count);
  };
  take(kFirstNumbers, tag_of(message));
  const std::int64_t count = numbers.front();
  take(
      std::max<std::int64_t>(count + 1 - kFirstNumbers, 0),
      tag_of(message) + 1);
  return {numbers.begin() + 1, numbers.begin() + 1 + count};
}

void StageMessenger::broadcast(const at::Tensor& tensor, int src) {
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

void StageMessenger::end_step() {
  for (BegunExchange& each : leaving_) each.wait();
  leaving_.clear();
  if (!edges_.empty()) meet_hosts();
}

void StageMessenger::meet_hosts() {
  const at::Tensor token = at::zeros({1}, at::kByte);
  std::vector<BegunExchange> meetings;
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank()) continue;
    const int tag = tag_of(kEndOfStep);
    meetings.push_back(BegunExchange::messages(
        group_,
        "ending a step",
        {{token, peer, tag}},
        {{at::empty_like(token), peer, tag}},
        lost(peer)));
  }
  for (BegunExchange& each : meetings) each.wait();
}

void StageMessenger::abandon() noexcept {
  edges_.abort();
  if (group_.size() > 1) group_.impl()->connection->abort();
  leaving_.clear();
  group_ = Group();
}

int StageMessenger::tag_of(const StageMessage& message) const {
  const auto step = static_cast<int>(num_steps_ % kStepsApart);
  const int kind = message.kind == StageMessage::Kind::outputs ? 0 : 1;
  const int place =
      (message.stage * 2 + kind) * num_micro_batches_ + message.micro_batch;
  return (place * static_cast<int>(kStepsApart) + step) * kTagsPerValue;
}

void StageMessenger::keep(BegunExchange&& leaving) {
  while (!leaving_.empty() && leaving_.front().is_complete())
    leaving_.pop_front();
  leaving_.push_back(std::move(leaving));
}

}  // namespace accelerate::detail
