#include "support/run_on_ranks.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <c10/core/AutogradState.h>

#include <accelerate/error.h>

#include "support/thread_transport.h"

namespace accelerate::testing {

namespace {

// LibTorch's flight recorder (2.11 and 2.15) adds each new process group to a
// map without a lock, so it must be off where ranks are threads.
const bool kHasNoRecorder = setenv("TORCH_FR_BUFFER_SIZE", "0", 1) == 0;

// Empty for the default transport.
std::string_view name_of_transport() {
  const char* const name = std::getenv("ACCELERATE_TEST_TRANSPORT");
  return name == nullptr ? "" : name;
}

int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

// Runs the rank that this process is.
void run_own_rank(
    int num_ranks,
    const std::function<void(const WorldOptions&)>& rank) {
  if (!can_run_on(num_ranks))
    throw std::runtime_error("the launcher started another number of ranks");
  rank(
      {.timeout = std::chrono::seconds(60),
       .logger = Logger([](const LogRecord&) {}, LogLevel::off)});
}

NcclRanks nccl_ranks;

// Null unless the environment asks for them.
const NcclRanks* chosen_nccl_ranks() {
  if (!name_of_transport().starts_with("nccl")) return nullptr;
  if (nccl_ranks.run == nullptr)
    throw std::runtime_error("this program does not link nccl_ranks.cpp");
  return &nccl_ranks;
}

}  // namespace

void set_nccl_ranks(const NcclRanks& ranks) { nccl_ranks = ranks; }

at::Device device_of_ranks() {
  if (const NcclRanks* const ranks = chosen_nccl_ranks())
    return ranks->device();
  const char* const name = std::getenv("ACCELERATE_TEST_DEVICE");
  return name == nullptr ? at::Device(at::kCPU) : at::Device(name);
}

bool ranks_are_processes() {
  const char* const how = std::getenv("ACCELERATE_TEST_RANKS");
  return how != nullptr && std::string_view(how) == "processes";
}

bool can_run_on(int num_ranks) {
  return num_ranks == 1 || !ranks_are_processes() ||
      num_ranks == number_in("WORLD_SIZE");
}

bool ranks_connect_as_threads() { return name_of_transport() == "threads"; }

bool ranks_connect_by_default() { return name_of_transport().empty(); }

void run_on_ranks(
    int num_ranks,
    const std::function<void(const WorldOptions&)>& rank) {
  if (ranks_are_processes() && num_ranks > 1)
    return run_own_rank(num_ranks, rank);
  if (!kHasNoRecorder)
    throw std::runtime_error("cannot switch the flight recorder off");
  const at::Device device = device_of_ranks();
  const Store store = Store::in_memory();
  const std::string_view name = name_of_transport();
  const NcclRanks* const nccl = chosen_nccl_ranks();
  const auto own_transport = ranks_connect_as_threads() || nccl != nullptr
      ? make_thread_transport()
      : nullptr;
  // Pretend devices compute only when something waits for them, so that an
  // operation may begin long before it ends.
  const std::chrono::seconds timeout(nccl == nullptr ? 30 : 120);
  std::optional<std::string> transport;
  if (!own_transport && !name.empty()) transport = name;
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < num_ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        // LibTorch's engine has one thread per device, which the ranks share.
        if (!device.is_cpu())
          c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
        const WorldOptions options{
            .rank = r,
            .size = num_ranks,
            .store = store,
            .transport = transport,
            .device = device,
            .timeout = timeout,
            .logger = Logger([](const LogRecord&) {}, LogLevel::off),
            .own_transport = own_transport};
        if (nccl != nullptr) {
          nccl->run(options, rank);
        } else {
          rank(options);
        }
      } catch (...) {
        failures[static_cast<std::size_t>(r)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr victim;
  for (const std::exception_ptr& failure : failures) {
    if (!failure) continue;
    try {
      std::rethrow_exception(failure);
    } catch (const DistributedError&) {
      if (!victim) victim = failure;
    }
  }
  if (victim) std::rethrow_exception(victim);
}

void run_in_worlds(
    int num_ranks,
    const std::function<void(const World&)>& rank) {
  run_on_ranks(
      num_ranks, [&](const WorldOptions& options) { rank(World(options)); });
}

}  // namespace accelerate::testing
