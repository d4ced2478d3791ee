#pragma once

#include <functional>
#include <memory>
#include <string>

#include <accelerate/world.h>

#include "support/fake_nccl/fake_nccl.h"
#include "support/run_on_ranks.h"

namespace accelerate::testing {

/// Path of the fake library.
std::string fake_nccl_path();

/// Same as run_on_ranks(), for ranks on pretend devices, which the fake NCCL
/// connects; tensors in host memory take the transport for threads. Each rank's
/// current stream is its own.
void run_on_nccl_ranks(int num_ranks, const RankFunction& rank);
void run_in_nccl_worlds(
    int num_ranks,
    const std::function<void(const World&)>& rank);

/// While alive, the fake library has faults.
class FakeNcclFaultScope {
 public:
  explicit FakeNcclFaultScope(const FakeNcclFaults& faults);
  ~FakeNcclFaultScope();
  FakeNcclFaultScope(const FakeNcclFaultScope&) = delete;
  FakeNcclFaultScope& operator=(const FakeNcclFaultScope&) = delete;
};

int num_nccl_communicators();
/// Operations, and groups of operations, that all ranks have started.
int num_nccl_starts();

}  // namespace accelerate::testing
