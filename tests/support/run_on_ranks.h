#pragma once

#include <functional>
#include <utility>

#include <accelerate/world.h>

namespace accelerate::testing {

/// Runs `rank` once on each of `num_ranks` threads, with options that make it a
/// rank of one world over a shared in-memory store. Returns when all have
/// ended. ACCELERATE_TEST_TRANSPORT in the environment names the transport that
/// connects them; `threads` is the transport of thread_transport.h, and `nccl`
/// is that of nccl_ranks.h, for programs that link it; `nccl_from_host` is the
/// same for tests that leave inputs in host memory (host_inputs.h). Rethrows the error of the
/// first rank that failed, preferring errors that are not about a lost peer.
void run_on_ranks(
    int num_ranks,
    const std::function<void(const WorldOptions&)>& rank);

/// The device that run_on_ranks() gives all ranks: ACCELERATE_TEST_DEVICE in
/// the environment, such as cuda:0 for tests that can share it, or the CPU. With
/// `nccl`, it is a pretend device.
at::Device device_of_ranks();

/// Whether this process is one of several ranks, which a launcher started with
/// ACCELERATE_TEST_RANKS=processes: run_on_ranks() then runs only its own rank,
/// on the device and by the transport that the launcher gives it. Results that
/// ranks leave in the test's variables are only those of this rank.
bool ranks_are_processes();
/// False where the ranks are processes, but not as many.
bool can_run_on(int num_ranks);

/// Whether thread_transport.h connects the ranks. Other transports take longer;
/// suites with very many combinations can try only some of them there.
bool ranks_connect_as_threads();
/// Whether they connect as they do for users, by the transport that the library
/// chooses.
bool ranks_connect_by_default();

using RankFunction = std::function<void(const WorldOptions&)>;

/// How ranks run with `nccl`.
struct NcclRanks {
  at::Device (*device)() = nullptr;
  /// Runs `rank` on this thread; its options have the transport for threads.
  void (*run)(WorldOptions options, const RankFunction& rank) = nullptr;
};
/// Set before main() by programs that link nccl_ranks.cpp.
void set_nccl_ranks(const NcclRanks& ranks);

/// Same as run_on_ranks(), with a World made for each rank.
void run_in_worlds(
    int num_ranks,
    const std::function<void(const World&)>& rank);

}  // namespace accelerate::testing
