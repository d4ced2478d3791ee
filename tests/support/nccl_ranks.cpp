#include "support/nccl_ranks.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/transport/adapters/device_routing.h"
#include "comm/transport/nccl/nccl_library.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "support/host_inputs.h"
#include "support/pretend_device.h"
#include "support/run_on_ranks.h"
#include "support/thread_transport.h"

namespace accelerate::testing {

namespace {

const FakeNcclControls& controls() {
  static const FakeNcclControls* const found = [] {
    void* const library = ::dlopen(fake_nccl_path().c_str(), RTLD_NOW);
    if (library == nullptr) throw std::runtime_error(::dlerror());
    return reinterpret_cast<decltype(&fake_nccl_controls)>(
        ::dlsym(library, "fake_nccl_controls"))();
  }();
  return *found;
}

class ThreadsWithNccl final : public detail::Transport {
 public:
  ThreadsWithNccl(
      std::shared_ptr<detail::Transport> host,
      const at::Device& device,
      const detail::RankIsGone& is_gone)
      : host_(std::move(host)),
        nccl_(detail::make_nccl_transport(
            detail::NcclLibrary::open(fake_nccl_path()),
            device,
            [is_gone] { return is_gone; })) {}

  [[nodiscard]] const detail::TransportFacts& facts() const override {
    return host_->facts();
  }
  [[nodiscard]] std::shared_ptr<detail::Connection> connect(
      const detail::ConnectRequest& request) override {
    auto host = host_->connect(request);
    return detail::route_by_device(std::move(host), nccl_->connect(request));
  }
  [[nodiscard]] std::optional<std::string> describe_failure(
      const std::exception& error) const override {
    auto text = host_->describe_failure(error);
    return text ? text : nccl_->describe_failure(error);
  }
  [[nodiscard]] std::optional<std::string> failure_on_devices() const override {
    return nccl_->failure_on_devices();
  }

 private:
  std::shared_ptr<detail::Transport> host_;
  std::shared_ptr<detail::Transport> nccl_;
};

// Ranks that have ended, by the transport for threads, which all ranks of a world
// share.
class EndedRanks {
 public:
  using World = std::weak_ptr<detail::Transport>;

  void add(const World& world, int rank) {
    const std::lock_guard lock(mutex_);
    ended_[world].insert(rank);
  }
  bool contains(const World& world, int rank) {
    const std::lock_guard lock(mutex_);
    return ended_[world].contains(rank);
  }

 private:
  std::mutex mutex_;
  std::map<World, std::set<int>, std::owner_less<World>> ended_;
};

EndedRanks& ended_ranks() {
  static auto* const ranks = new EndedRanks();
  return *ranks;
}

void run_rank(WorldOptions options, const RankFunction& rank) {
  const at::Device device = *options.device;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.setDevice(device);
  const c10::Stream before = guard.exchangeStream(guard.getNewStream(device));
  const std::shared_ptr<detail::Transport> host = options.own_transport;
  const EndedRanks::World world = host;
  options.own_transport =
      std::make_shared<ThreadsWithNccl>(host, device, [world](int each) {
        return ended_ranks().contains(world, each);
      });
  const std::shared_ptr<void> end(nullptr, [world, own = *options.rank](void*) {
    ended_ranks().add(world, own);
  });
  rank(options);
  guard.exchangeStream(before);
}

void take_host_inputs() {
  const std::string_view transport = std::getenv("ACCELERATE_TEST_TRANSPORT");
  if (transport == "nccl_from_host") let_devices_take_host_tensors();
}

at::Device device_of_suites() {
  take_host_inputs();
  return pretend_device();
}

void run_rank_of_suites(WorldOptions options, const RankFunction& rank) {
  take_host_inputs();
  run_rank(std::move(options), rank);
}

const bool is_set = [] {
  set_nccl_ranks({.device = &device_of_suites, .run = &run_rank_of_suites});
  return true;
}();

}  // namespace

std::string fake_nccl_path() { return FAKE_NCCL_LIBRARY; }

void run_on_nccl_ranks(int num_ranks, const RankFunction& rank) {
  pretend_device();
  const auto host = make_thread_transport();
  run_on_ranks(num_ranks, [&](WorldOptions options) {
    // LibTorch's engine has one thread per device, which the ranks share.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    options.device = pretend_device(*options.rank % 2);
    options.own_transport = host;
    run_rank(std::move(options), rank);
  });
}

void run_in_nccl_worlds(
    int num_ranks,
    const std::function<void(const World&)>& rank) {
  run_on_nccl_ranks(
      num_ranks, [&](const WorldOptions& options) { rank(World(options)); });
}

FakeNcclFaultScope::FakeNcclFaultScope(const FakeNcclFaults& faults) {
  controls().set_faults(&faults);
}
FakeNcclFaultScope::~FakeNcclFaultScope() {
  const FakeNcclFaults none;
  controls().set_faults(&none);
}

int num_nccl_communicators() { return controls().num_communicators(); }
int num_nccl_starts() { return controls().num_starts(); }

}  // namespace accelerate::testing
