#include "comm/group/p2p_batch.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"

namespace accelerate::detail {

P2PBatch::P2PBatch(Group group, std::string what)
    : group_(std::move(group)), what_(std::move(what)) {}

P2PBatch::~P2PBatch() {
  if (messages_.empty()) return;
  note_in_flight(-static_cast<int>(messages_.size()));
  group_.impl()->unfinished.keep(std::move(messages_));
}

void P2PBatch::send(const at::Tensor& tensor, int to, int tag) {
  start(&Connection::send, tensor, to, tag);
}

void P2PBatch::receive(const at::Tensor& tensor, int from, int tag) {
  start(&Connection::receive, tensor, from, tag);
}

void P2PBatch::start(
    Work (Connection::*direction)(const at::Tensor&, int, int),
    const at::Tensor& tensor,
    int peer,
    int tag) {
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  try {
    messages_.push_back(
        {.tensor = tensor,
         .work = ((*group_.impl()->connection).*direction)(tensor, peer, tag)});
    peers_.push_back(group_.impl()->peer_in_world(peer));
    group_.impl()->connection->run_in_background();
    note_in_flight(1);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(error);
  }
}

void P2PBatch::wait() {
  if (messages_.empty()) return;
  const StepPartScope part(
      group_.impl()->world->steps.get(), StepPart::communication);
  BoardWriter* const notes = group_.impl()->world->notes();
  const BoardWaitScope wait(
      notes, what_.c_str(), notes == nullptr ? std::vector<int>{} : awaited());
  while (!messages_.empty()) {
    const UnfinishedWork message = std::move(messages_.back());
    messages_.pop_back();
    peers_.pop_back();
    note_in_flight(-1);
    try {
      message.work->wait();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail(error);
    }
  }
}

std::vector<int> P2PBatch::awaited() const {
  std::vector<int> ranks;
  for (const int peer : peers_) {
    if (std::find(ranks.begin(), ranks.end(), peer) == ranks.end())
      ranks.push_back(peer);
  }
  return ranks;
}

void P2PBatch::note_in_flight(int change) const {
  StepListener* const listener = group_.impl()->world->steps->get();
  if (listener != nullptr) listener->change_in_flight(change);
}

void P2PBatch::fail(const std::exception& error) const {
  fail_collective(
      *group_.impl(), what_.c_str(), ++group_.impl()->sequence, error);
}

}  // namespace accelerate::detail
