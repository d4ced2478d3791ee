#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/shared_memory/operations/collectives.h"
#include "comm/transport/shared_memory/progress/progress_engine.h"
#include "comm/transport/transport.h"

namespace accelerate::detail {

[[nodiscard]] const TransportFacts& shared_memory_facts();

/// Wraps a host tensor as collectives take it.
[[nodiscard]] HostTensor host_tensor(const at::Tensor& tensor);

class SharedMemoryConnection final : public Connection {
 public:
  /// All ranks have entered `engine`.
  explicit SharedMemoryConnection(std::shared_ptr<ProgressEngine> engine);
  SharedMemoryConnection(const SharedMemoryConnection&) = delete;
  SharedMemoryConnection& operator=(const SharedMemoryConnection&) = delete;
  ~SharedMemoryConnection() override;

  [[nodiscard]] const TransportFacts& facts() const override;
  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override;
  Work reduce(const at::Tensor& tensor, ReduceOp op, int dst) override;
  Work broadcast(const at::Tensor& tensor, int src) override;
  Work all_gather(const at::Tensor& output, const at::Tensor& input) override;
  Work gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst) override;
  Work reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op) override;
  Work scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src) override;
  Work all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes) override;
  Work barrier() override;
  void monitored_barrier(std::chrono::milliseconds timeout) override;
  Work send(const at::Tensor& tensor, int dst, int tag) override;
  Work receive(const at::Tensor& tensor, int src, int tag) override;
  void run_in_background() override { engine_->run_in_background(); }
  [[nodiscard]] at::Tensor reducible_memory(std::int64_t bytes) override;

  /// Waits for all ranks; throws if they are about to do different things.
  void agree(const CollectiveStamp& stamp);
  /// Ends the connection; the other ranks fail with this reason.
  void end(const std::string& reason) { engine_->end(reason); }

 private:
  [[nodiscard]] std::vector<std::size_t> bytes_of_parts(
      const at::Tensor& tensor,
      const std::vector<std::int64_t>& sizes) const;
  Work begin(
      std::shared_ptr<Operation> operation,
      std::vector<at::Tensor> outputs,
      std::vector<at::Tensor> inputs = {});

  std::shared_ptr<ProgressEngine> engine_;
};

}  // namespace accelerate::detail
