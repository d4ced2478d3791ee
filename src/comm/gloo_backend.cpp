#include "comm/gloo_backend.h"

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

std::shared_ptr<GlooDevice> make_gloo_device(
    bool single_machine,
    const std::string& interface) {
  using c10d::ProcessGroupGloo;
  if (!interface.empty()) {
    return std::make_shared<GlooDevice>(
        ProcessGroupGloo::createDeviceForInterface(interface));
  }
  if (single_machine) {
    return std::make_shared<GlooDevice>(
        ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
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
