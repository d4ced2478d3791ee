#include "comm/gloo_backend.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

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
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(
      found, &freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int socket = ::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    std::array<char, NI_MAXHOST> name{};
    const bool is_known =
        ::connect(socket, each->ai_addr, each->ai_addrlen) == 0 &&
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) ==
            0 &&
        ::getnameinfo(
            reinterpret_cast<sockaddr*>(&own),
            length,
            name.data(),
            name.size(),
            nullptr,
            0,
            NI_NUMERICHOST) == 0;
    ::close(socket);
    if (is_known) return name.data();
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
