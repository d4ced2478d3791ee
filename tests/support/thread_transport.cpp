#include "support/thread_transport.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport/works.h"

namespace accelerate::testing {

namespace {

using detail::completed_work;
using detail::Connection;
using detail::ConnectRequest;
using detail::Transport;
using detail::TransportFacts;
using detail::Work;
using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;

struct ThreadTransportError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const TransportFacts& thread_facts() {
  static const TransportFacts facts{
      .name = "threads",
      .device_types = {c10::DeviceType::CPU},
      .can_reduce =
          [](at::ScalarType dtype, ReduceOp op) {
            if (op == ReduceOp::mean) return false;
            const bool is_bits = op == ReduceOp::bit_and ||
                op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
            return dtype == at::kInt || dtype == at::kLong ||
                (!is_bits && (dtype == at::kFloat || dtype == at::kDouble));
          },
      .point_to_point = detail::PointToPoint::ordered,
      .is_thread_safe = false};
  return facts;
}

// State that the ranks of one group share.
class Board {
 public:
  explicit Board(std::size_t size)
      : tensors_(size), has_come_(size), has_left_(size) {}

  std::size_t size() const { return has_left_.size(); }

  // Shows `own` to all ranks and calls `read` with the tensors of all; returns
  // when all ranks have read.
  void share(
      std::size_t rank,
      Tensors own,
      milliseconds timeout,
      const std::function<void(const std::vector<Tensors>&)>& read) {
    // All ranks have left the previous round.
    tensors_[rank] = std::move(own);
    meet(rank, timeout);
    read(tensors_);
    meet(rank, timeout);
    tensors_[rank].clear();
  }

  void meet(std::size_t rank, milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const int round = round_;
    has_come_[rank] = true;
    if (std::count(has_come_.begin(), has_come_.end(), true) ==
        static_cast<std::ptrdiff_t>(size())) {
      std::fill(has_come_.begin(), has_come_.end(), false);
      ++round_;
      changed_.notify_all();
      return;
    }
    wait(
        lock,
        timeout,
        [&] { return round_ != round; },
        [&](std::size_t peer) { return !has_come_[peer]; });
  }

  void send(std::size_t from, std::size_t to, at::Tensor tensor) {
    const std::lock_guard lock(mutex_);
    Channel& channel = channels_[{from, to}];
    channel.messages.emplace(channel.num_sent++, std::move(tensor));
    changed_.notify_all();
  }

  // Returns the number of the next message.
  std::size_t expect(std::size_t from, std::size_t to) {
    const std::lock_guard lock(mutex_);
    return channels_[{from, to}].num_expected++;
  }

  at::Tensor receive(
      std::size_t from,
      std::size_t to,
      std::size_t number,
      milliseconds timeout) {
    std::unique_lock lock(mutex_);
    auto& messages = channels_[{from, to}].messages;
    wait(
        lock,
        timeout,
        [&] { return messages.count(number) > 0; },
        [&](std::size_t peer) { return peer == from; });
    return messages.extract(number).mapped();
  }

  bool has_message(std::size_t from, std::size_t to, std::size_t number) {
    const std::lock_guard lock(mutex_);
    return channels_[{from, to}].messages.count(number) > 0;
  }

  void leave(std::size_t rank) {
    const std::lock_guard lock(mutex_);
    has_left_[rank] = true;
    changed_.notify_all();
  }

 private:
  struct Channel {
    std::size_t num_sent = 0;
    std::size_t num_expected = 0;
    std::map<std::size_t, at::Tensor> messages;
  };

  // Throws if a rank that this one waits for has left or does not answer in
  // time.
  void wait(
      std::unique_lock<std::mutex>& lock,
      milliseconds timeout,
      const std::function<bool()>& is_done,
      const std::function<bool(std::size_t)>& waits_for) {
    const auto one_has_left = [&] {
      for (std::size_t peer = 0; peer < size(); ++peer)
        if (has_left_[peer] && waits_for(peer)) return true;
      return false;
    };
    const bool has_ended = changed_.wait_for(
        lock, timeout, [&] { return is_done() || one_has_left(); });
    if (is_done()) return;
    std::string ranks;
    for (std::size_t peer = 0; peer < size(); ++peer) {
      if (waits_for(peer) && (!has_ended || has_left_[peer]))
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(peer);
    }
    throw ThreadTransportError(
        has_ended ? "a thread has left: " + ranks
                  : "timed out waiting for threads " + ranks);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Tensors> tensors_;
  std::vector<bool> has_come_;
  std::vector<bool> has_left_;
  int round_ = 0;
  std::map<std::pair<std::size_t, std::size_t>, Channel> channels_;
};

class Receive final : public c10d::Work {
 public:
  Receive(
      std::shared_ptr<Board> board,
      std::size_t from,
      std::size_t to,
      at::Tensor tensor,
      milliseconds timeout)
      : board_(std::move(board)),
        from_(from),
        to_(to),
        number_(board_->expect(from, to)),
        tensor_(std::move(tensor)),
        timeout_(timeout) {}

  bool isCompleted() override {
    return board_->has_message(from_, to_, number_);
  }
  bool wait(milliseconds) override {
    tensor_.copy_(board_->receive(from_, to_, number_, timeout_));
    return true;
  }

 private:
  std::shared_ptr<Board> board_;
  std::size_t from_;
  std::size_t to_;
  std::size_t number_;
  at::Tensor tensor_;
  milliseconds timeout_;
};

void reduce_into(const at::Tensor& sum, const at::Tensor& next, ReduceOp op) {
  switch (op) {
    case ReduceOp::product:
      sum.mul_(next);
      return;
    case ReduceOp::min:
      sum.copy_(at::minimum(sum, next));
      return;
    case ReduceOp::max:
      sum.copy_(at::maximum(sum, next));
      return;
    case ReduceOp::bit_and:
      sum.bitwise_and_(next);
      return;
    case ReduceOp::bit_or:
      sum.bitwise_or_(next);
      return;
    case ReduceOp::bit_xor:
      sum.bitwise_xor_(next);
      return;
    default:
      sum.add_(next);
  }
}

class ThreadConnection final : public Connection {
 public:
  ThreadConnection(std::shared_ptr<Board> board, int rank, milliseconds timeout)
      : Connection(rank, static_cast<int>(board->size())),
        board_(std::move(board)),
        me_(static_cast<std::size_t>(rank)),
        timeout_(timeout) {}
  ~ThreadConnection() override { board_->leave(me_); }

  const TransportFacts& facts() const override { return thread_facts(); }

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return write(tensor, reduced(tensor, op));
  }

  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    const at::Tensor result = reduced(tensor, op);
    return rank() == dst ? write(tensor, result) : completed_work({tensor});
  }

  Work broadcast(const at::Tensor& tensor, int src) override {
    share({tensor}, [&](const auto& all) {
      if (rank() != src) tensor.copy_(all[static_cast<std::size_t>(src)][0]);
    });
    return completed_work({tensor});
  }

  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    share({input.reshape(-1)}, [&](const auto& all) {
      output.view(-1).copy_(at::cat(firsts_of(all)));
    });
    return completed_work({output});
  }

  Work gather(const Tensors& outputs, const at::Tensor& input, int) override {
    share({input}, [&](const auto& all) {
      for (std::size_t peer = 0; peer < outputs.size(); ++peer)
        outputs[peer].copy_(all[peer][0]);
    });
    return completed_work(outputs);
  }

  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    const std::int64_t rows = input.size(0) / size();
    return write(output, reduced(input, op).narrow(0, rows * rank(), rows));
  }

  Work scatter(const at::Tensor& output, const Tensors& inputs, int src)
      override {
    share(inputs, [&](const auto& all) {
      output.copy_(all[static_cast<std::size_t>(src)][me_]);
    });
    return completed_work({output});
  }

  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>&,
      const std::vector<std::int64_t>& input_sizes) override {
    const Tensors parts = input_sizes.empty()
        ? input.chunk(size())
        : input.split_with_sizes(input_sizes);
    share(parts, [&](const auto& all) {
      Tensors received;
      for (const Tensors& of_peer : all) received.push_back(of_peer[me_]);
      output.copy_(at::cat(received));
    });
    return completed_work({output});
  }

  Work barrier() override {
    board_->meet(me_, timeout_);
    return completed_work({});
  }
  void monitored_barrier(milliseconds timeout) override {
    board_->meet(me_, timeout);
  }

  Work send(const at::Tensor& tensor, int dst, int) override {
    board_->send(me_, static_cast<std::size_t>(dst), tensor.clone());
    return completed_work({tensor});
  }
  Work receive(const at::Tensor& tensor, int src, int) override {
    return c10::make_intrusive<Receive>(
        board_, static_cast<std::size_t>(src), me_, tensor, timeout_);
  }

 private:
  void share(
      Tensors own,
      const std::function<void(const std::vector<Tensors>&)>& read) {
    board_->share(me_, std::move(own), timeout_, read);
  }

  static Tensors firsts_of(const std::vector<Tensors>& all) {
    Tensors firsts;
    for (const Tensors& of_peer : all) firsts.push_back(of_peer[0]);
    return firsts;
  }

  at::Tensor reduced(const at::Tensor& tensor, ReduceOp op) {
    at::Tensor result;
    share({tensor}, [&](const auto& all) {
      result = all[0][0].clone();
      for (std::size_t peer = 1; peer < all.size(); ++peer)
        reduce_into(result, all[peer][0], op);
    });
    return result;
  }

  static Work write(const at::Tensor& tensor, const at::Tensor& result) {
    tensor.copy_(result);
    return completed_work({tensor});
  }

  std::shared_ptr<Board> board_;
  std::size_t me_;
  milliseconds timeout_;
};

class ThreadTransport final : public Transport {
 public:
  const TransportFacts& facts() const override { return thread_facts(); }

  // Rank 0 sets up a board and sends the others its number.
  std::shared_ptr<Connection> connect(const ConnectRequest& request) override {
    if (request.rank == 0) {
      const std::lock_guard lock(mutex_);
      request.store->set("board", std::to_string(boards_.size()));
      boards_.push_back(std::make_shared<Board>(request.world_ranks.size()));
    }
    request.store->wait({"board"}, request.timeout);
    const auto number = std::stoul(request.store->get_to_str("board"));
    const std::lock_guard lock(mutex_);
    return std::make_shared<ThreadConnection>(
        boards_.at(number), request.rank, request.timeout);
  }

  std::optional<std::string> describe_failure(
      const std::exception& error) const override {
    if (dynamic_cast<const ThreadTransportError*>(&error) == nullptr)
      return std::nullopt;
    return error.what();
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Board>> boards_;
};

}  // namespace

std::shared_ptr<Transport> make_thread_transport() {
  return std::make_shared<ThreadTransport>();
}

}  // namespace accelerate::testing
