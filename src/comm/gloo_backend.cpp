#include "comm/gloo_backend.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/network.h"

namespace accelerate::detail {

class GlooDevice {
 public:
  explicit GlooDevice(std::shared_ptr<gloo::transport::Device> device)
      : device_(std::move(device)) {}
  [[nodiscard]] const std::shared_ptr<gloo::transport::Device>& get() const {
    return device_;
  }

 private:
  std::shared_ptr<gloo::transport::Device> device_;
};

namespace {

// The name of a host often means its loopback, to itself. Nothing is sent: the
// system only says which address it would send from.
std::string address_towards(const std::string& host) {
  const Addresses found(host, 9, SOCK_DGRAM);
  for (const addrinfo* each = found.first(); each != nullptr;
       each = each->ai_next) {
    const int socket = ::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    const bool is_known =
        ::connect(socket, each->ai_addr, each->ai_addrlen) == 0;
    std::string address = is_known ? own_address(socket) : std::string();
    ::close(socket);
    if (is_known) return address;
  }
  return {};
}

}  // namespace

std::shared_ptr<GlooDevice> make_gloo_device(
    bool single_machine,
    const std::string& interface,
    const std::string& main_address) {
  using c10d::ProcessGroupGloo;
  if (!interface.empty()) {
    return std::make_shared<GlooDevice>(
        ProcessGroupGloo::createDeviceForInterface(interface));
  }
  if (single_machine) {
    return std::make_shared<GlooDevice>(
        ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  }
  const std::string address = address_towards(main_address);
  if (!address.empty()) {
    return std::make_shared<GlooDevice>(
        ProcessGroupGloo::createDeviceForHostname(address));
  }
  return std::make_shared<GlooDevice>(ProcessGroupGloo::createDefaultDevice());
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const std::shared_ptr<GlooDevice>& device,
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(device->get());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      store, rank, size, options);
}

}  // namespace accelerate::detail
