#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include <ATen/Functions.h>

#include "base/text/text.h"
#include "comm/transport/adapters/adapters.h"
#include "comm/transport/adapters/connection_adapter.h"
#include "comm/transport/works.h"

namespace accelerate::detail {

namespace {

// A message that a receive waits for.
struct TaggedMessage {
  explicit TaggedMessage(at::Tensor to) : tensor(std::move(to)) {}

  at::Tensor tensor;
  bool is_here = false;
};

// Messages from one peer, read in the order they were sent.
class TaggedChannel {
 public:
  TaggedChannel(std::shared_ptr<Connection> connection, int peer)
      : connection_(std::move(connection)), peer_(peer) {}

  std::shared_ptr<TaggedMessage> expect(const at::Tensor& tensor, int tag) {
    auto message = std::make_shared<TaggedMessage>(tensor);
    std::deque<at::Tensor>& kept = unexpected_[tag];
    if (kept.empty()) {
      expected_[tag].push_back(message);
      return message;
    }
    require_size(tensor, kept.front().numel(), tag);
    tensor.copy_(kept.front());
    kept.pop_front();
    message->is_here = true;
    return message;
  }

  void wait_for(const TaggedMessage& message) {
    while (!message.is_here) read_next();
  }

 private:
  void read_next() {
    const at::Tensor header = at::empty({2}, at::kLong);
    connection_->receive(header.view(at::kByte), peer_, 0)->wait();
    const auto* const numbers = header.const_data_ptr<std::int64_t>();
    const int tag = static_cast<int>(numbers[0]);
    std::deque<std::shared_ptr<TaggedMessage>>& expected = expected_[tag];
    if (expected.empty()) {
      const at::Tensor kept = at::empty({numbers[1]}, at::kByte);
      connection_->receive(kept, peer_, 0)->wait();
      unexpected_[tag].push_back(kept);
      return;
    }
    const std::shared_ptr<TaggedMessage> message = expected.front();
    require_size(message->tensor, numbers[1], tag);
    expected.pop_front();
    connection_->receive(message->tensor, peer_, 0)->wait();
    message->is_here = true;
  }

  void require_size(const at::Tensor& tensor, std::int64_t bytes, int tag)
      const {
    if (tensor.numel() == bytes) return;
    throw std::runtime_error(format(
        "a message with tag {} has {} bytes where {} are expected",
        tag,
        bytes,
        tensor.numel()));
  }

  std::shared_ptr<Connection> connection_;
  int peer_;
  std::map<int, std::deque<std::shared_ptr<TaggedMessage>>> expected_;
  std::map<int, std::deque<at::Tensor>> unexpected_;
};

class TaggedReceive final : public c10d::Work {
 public:
  // A weak pointer: the channel is destroyed with its connection, even if this
  // receive is never waited for.
  TaggedReceive(
      std::weak_ptr<TaggedChannel> channel,
      std::shared_ptr<TaggedMessage> message)
      : channel_(std::move(channel)), message_(std::move(message)) {}

  bool isCompleted() override { return message_->is_here; }
  bool wait(std::chrono::milliseconds) override {
    const auto channel = channel_.lock();
    if (channel == nullptr)
      throw std::runtime_error("the connection of a message is closed");
    channel->wait_for(*message_);
    return true;
  }

 private:
  std::weak_ptr<TaggedChannel> channel_;
  std::shared_ptr<TaggedMessage> message_;
};

class TagMatching final : public ConnectionAdapter {
 public:
  explicit TagMatching(const std::shared_ptr<Connection>& connection)
      : ConnectionAdapter(connection) {
    facts_.point_to_point = PointToPoint::tagged;
    for (int peer = 0; peer < size(); ++peer)
      channels_.push_back(std::make_shared<TaggedChannel>(connection, peer));
  }

  Work send(const at::Tensor& tensor, int dst, int tag) override {
    const at::Tensor header =
        at::tensor({static_cast<std::int64_t>(tag), tensor.numel()}, at::kLong);
    const Work first = inner().send(header.view(at::kByte), dst, 0);
    return work_then(
        inner().send(tensor, dst, 0), [first] { first->wait(); }, {tensor});
  }

  Work receive(const at::Tensor& tensor, int src, int tag) override {
    const auto& channel = channels_[static_cast<std::size_t>(src)];
    return c10::make_intrusive<TaggedReceive>(
        channel, channel->expect(tensor, tag));
  }

 private:
  std::vector<std::shared_ptr<TaggedChannel>> channels_;
};

}  // namespace

std::shared_ptr<Connection> match_tags(std::shared_ptr<Connection> connection) {
  return std::make_shared<TagMatching>(connection);
}

}  // namespace accelerate::detail
