#include "comm/exchange.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/group_impl.h"

namespace accelerate::detail {

namespace {

// Gloo knows few types, and sending does not look at them.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().view(-1).view(at::kByte);
}

}  // namespace

Exchange::Exchange(Group group, std::string what)
    : group_(std::move(group)), what_(std::move(what)) {}

Exchange::~Exchange() {
  if (!messages_.empty()) new std::vector<Message>(std::move(messages_));
}

void Exchange::send(const at::Tensor& tensor, int to, int tag) {
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor bytes = bytes_of(tensor);
  std::vector<at::Tensor> buffers{bytes};
  try {
    messages_.push_back(
        {group_.impl()->backend->send(buffers, to, tag), bytes});
  } catch (const std::exception& error) {
    fail_collective(
        *group_.impl(), what_.c_str(), ++group_.impl()->sequence, error);
  }
}

void Exchange::receive(const at::Tensor& tensor, int from, int tag) {
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor bytes = bytes_of(tensor);
  std::vector<at::Tensor> buffers{bytes};
  try {
    messages_.push_back(
        {group_.impl()->backend->recv(buffers, from, tag), bytes});
  } catch (const std::exception& error) {
    fail_collective(
        *group_.impl(), what_.c_str(), ++group_.impl()->sequence, error);
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
      fail_collective(
          *group_.impl(), what_.c_str(), ++group_.impl()->sequence, error);
    }
  }
}

}  // namespace accelerate::detail
