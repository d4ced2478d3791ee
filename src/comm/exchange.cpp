#include "comm/exchange.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/group_impl.h"
#include "comm/wire.h"

namespace accelerate::detail {

Exchange::Exchange(Group group, std::string what)
    : group_(std::move(group)), what_(std::move(what)) {}

Exchange::~Exchange() {
  if (!messages_.empty()) new std::vector<Message>(std::move(messages_));
}

void Exchange::send(const at::Tensor& tensor, int to, int tag) {
  start(&c10d::Backend::send, tensor, to, tag);
}

void Exchange::receive(const at::Tensor& tensor, int from, int tag) {
  start(&c10d::Backend::recv, tensor, from, tag);
}

void Exchange::start(
    c10::intrusive_ptr<c10d::Work> (
        c10d::Backend::*direction)(std::vector<at::Tensor>&, int, int),
    const at::Tensor& tensor,
    int peer,
    int tag) {
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor bytes = as_bytes(tensor);
  std::vector<at::Tensor> buffers{bytes};
  try {
    messages_.push_back(
        {((*group_.impl()->backend).*direction)(buffers, peer, tag), bytes});
  } catch (const std::exception& error) {
    fail(error);
  }
}

void Exchange::wait() {
  while (!messages_.empty()) {
    const Message message = std::move(messages_.back());
    messages_.pop_back();
    try {
      message.work->wait();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail(error);
    }
  }
}

void Exchange::fail(const std::exception& error) const {
  fail_collective(
      *group_.impl(), what_.c_str(), ++group_.impl()->sequence, error);
}

}  // namespace accelerate::detail
