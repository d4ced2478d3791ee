#include "comm/transport/hierarchy/hierarchical_connection.h"

#include <string>
#include <utility>

#include "base/text/text.h"
#include "comm/transport/hierarchy/island_operations.h"
#include "comm/transport/hierarchy/serial_queue.h"
#include "comm/transport/shared_memory/memory/peers.h"

namespace accelerate::detail {

namespace {

const TransportFacts& hierarchy_facts() {
  static const TransportFacts facts{
      .name = "hierarchy",
      .device_types = shared_memory_facts().device_types,
      .can_reduce = shared_memory_facts().can_reduce,
      .point_to_point = PointToPoint::tagged,
      .is_thread_safe = true,
      .compares_calls = true};
  return facts;
}

class HierarchicalConnection final : public Connection {
 public:
  HierarchicalConnection(
      std::shared_ptr<SharedMemoryConnection> inside,
      std::shared_ptr<Connection> network,
      Islands islands,
      const std::vector<int>& world_ranks)
      : Connection(network->rank(), network->size()),
        inside_(inside),
        network_(network),
        islands_(islands),
        operations_(
            std::move(inside),
            IslandLinks(std::move(network), std::move(islands), world_ranks)),
        queue_(std::make_shared<SerialQueue>(
            [island = std::weak_ptr(inside_),
             own = world_ranks[static_cast<std::size_t>(rank())]](
                const std::exception& error) {
              tell(island.lock(), own, error);
            })) {}
  HierarchicalConnection(const HierarchicalConnection&) = delete;
  HierarchicalConnection& operator=(const HierarchicalConnection&) = delete;
  ~HierarchicalConnection() override {
    if (queue_->is_own_process()) {
      queue_->close();
    } else {
      new Kept{std::move(queue_), std::move(network_)};
    }
  }

  [[nodiscard]] const TransportFacts& facts() const override {
    return hierarchy_facts();
  }

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return push([=, this] { operations_.all_reduce(tensor, op); }, {tensor});
  }
  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override {
    return push([=, this] { operations_.reduce(tensor, op, dst); }, {tensor});
  }
  Work broadcast(const at::Tensor& tensor, int src) override {
    return push([=, this] { operations_.broadcast(tensor, src); }, {tensor});
  }
  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return push([=, this] { operations_.all_gather(output, input); }, {output});
  }
  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override {
    return push(
        [=, this] { operations_.gather(outputs, input, dst); }, outputs);
  }
  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override {
    return push(
        [=, this] { operations_.reduce_scatter(output, input, op); }, {output});
  }
  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override {
    return push(
        [=, this] { operations_.scatter(output, inputs, src); }, {output});
  }
  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override {
    return push(
        [=, this] {
          operations_.all_to_all(output, input, output_sizes, input_sizes);
        },
        {output});
  }
  Work barrier() override {
    return push([this] { operations_.barrier(); }, {});
  }
  void monitored_barrier(std::chrono::milliseconds timeout) override {
    network_->monitored_barrier(timeout);
  }

  Work send(const at::Tensor& tensor, int dst, int tag) override {
    if (is_inside(dst))
      return inside_->send(tensor, islands_.local_rank(dst), tag);
    return network_->send(tensor, dst, tag);
  }
  Work receive(const at::Tensor& tensor, int src, int tag) override {
    if (is_inside(src))
      return inside_->receive(tensor, islands_.local_rank(src), tag);
    return network_->receive(tensor, src, tag);
  }

  void run_in_background() override {
    queue_->run_in_background();
    if (inside_) inside_->run_in_background();
  }

 private:
  /// Members that a forked child cannot end, since it lacks their threads.
  struct Kept {
    std::shared_ptr<SerialQueue> queue;
    std::shared_ptr<Connection> network;
  };

  // Without this, the other ranks of the island would wait for this one.
  static void tell(
      const std::shared_ptr<SharedMemoryConnection>& island,
      int own,
      const std::exception& error) {
    if (!island) return;
    const std::string reason = first_line_of(error);
    island->end(
        reason.find(kSharedMemoryMark) != std::string::npos
            ? reason
            : format(
                  "{}rank {} lost ranks on other machines: {}",
                  kSharedMemoryMark,
                  own,
                  reason));
  }

  Work push(std::function<void()> task, std::vector<at::Tensor> outputs) {
    return queue_->push(std::move(task), std::move(outputs));
  }

  [[nodiscard]] bool is_inside(int peer) const {
    return islands_.island_of(peer) == islands_.island_of(rank());
  }

  std::shared_ptr<SharedMemoryConnection> inside_;
  std::shared_ptr<Connection> network_;
  Islands islands_;
  IslandOperations operations_;
  std::shared_ptr<SerialQueue> queue_;
};

}  // namespace

std::shared_ptr<Connection> make_hierarchical_connection(
    std::shared_ptr<SharedMemoryConnection> inside,
    std::shared_ptr<Connection> network,
    Islands islands,
    std::vector<int> world_ranks) {
  return std::make_shared<HierarchicalConnection>(
      std::move(inside), std::move(network), std::move(islands), world_ranks);
}

}  // namespace accelerate::detail
