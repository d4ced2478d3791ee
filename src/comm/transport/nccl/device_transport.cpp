#include "comm/transport/nccl/device_transport.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/machine/shared_segment.h"
#include "base/text/text.h"
#include "comm/transport/adapters/device_routing.h"
#include "comm/transport/handshake.h"
#include "comm/transport/nccl/nccl_library.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "config/user_variables.h"

namespace accelerate::detail {

namespace {

// Names a device in the way that NCCL tells them apart: a rank may claim
// another host, so that ranks share a device.
std::string name_of_device(const TransportSettings& settings) {
  const Environment& environment = settings.environment;
  return format(
      "{} {} {}",
      environment.get("NCCL_HOSTID").value_or(SharedSegment::machine()),
      environment.get("CUDA_VISIBLE_DEVICES").value_or("all"),
      settings.device->str());
}

class DeviceTransport final : public Transport {
 public:
  DeviceTransport(
      std::shared_ptr<Transport> host,
      const TransportSettings& settings,
      NcclUse use)
      : host_(std::move(host)), device_(name_of_device(settings)), use_(use) {
    try {
      library_ = NcclLibrary::open(
          settings.environment.get("ACCELERATE_NCCL_LIBRARY"),
          join(nccl_variables(settings.environment), ", "));
      nccl_ =
          make_nccl_transport(library_, *settings.device, settings.watch_ranks);
    } catch (const ConfigError& error) {
      if (use == NcclUse::required) throw;
      reason_ = error.what();
    }
  }

  [[nodiscard]] const TransportFacts& facts() const override {
    return host_->facts();
  }

  [[nodiscard]] std::shared_ptr<Connection> connect(
      const ConnectRequest& request) override {
    std::shared_ptr<Connection> host = host_->connect(request);
    Handshake handshake(request, "devices");
    const auto versions = handshake.exchange(
        "version", library_ == nullptr ? "" : library_->version_text());
    const std::string complaint =
        complaint_about(versions, handshake.exchange("device", device_));
    if (complaint.empty()) {
      return route_by_device(std::move(host), nccl_->connect(request));
    }
    if (use_ == NcclUse::required)
      throw ConfigError(format("[comm] {}", complaint));
    if (request.rank == 0 && !std::exchange(has_warned_, true)) {
      request.logger.log(
          LogLevel::warning,
          "comm",
          format(
              "group \"{}\": tensors on devices travel through host memory: {}",
              request.name,
              complaint));
    }
    return host;
  }

  [[nodiscard]] std::optional<std::string> describe_failure(
      const std::exception& error) const override {
    auto text = host_->describe_failure(error);
    if (!text && nccl_ != nullptr) text = nccl_->describe_failure(error);
    return text;
  }

  [[nodiscard]] std::optional<std::string> failure_on_devices() const override {
    return nccl_ == nullptr ? std::nullopt : nccl_->failure_on_devices();
  }

 private:
  // Returns why NCCL cannot connect the ranks, the same on all; empty if it
  // can.
  [[nodiscard]] std::string complaint_about(
      const std::vector<std::string>& versions,
      const std::vector<std::string>& devices) const {
    for (std::size_t rank = 0; rank < versions.size(); ++rank) {
      if (versions[rank].empty())
        return reason_.empty() ? format("rank {} has no NCCL", rank) : reason_;
      if (versions[rank] != versions[0]) {
        return format(
            "the ranks must have the same version of NCCL, but rank 0 has {}, "
            "and rank {} has {}",
            versions[0],
            rank,
            versions[rank]);
      }
      const auto first =
          std::find(devices.begin(), devices.end(), devices[rank]);
      if (first != devices.begin() + static_cast<std::ptrdiff_t>(rank)) {
        return format(
            "each rank must have a device of its own, but ranks {} and {} "
            "share one",
            first - devices.begin(),
            rank);
      }
    }
    return {};
  }

  std::shared_ptr<Transport> host_;
  std::string device_;
  NcclUse use_;
  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<Transport> nccl_;
  std::string reason_;
  bool has_warned_ = false;
};

}  // namespace

std::shared_ptr<Transport> with_nccl(
    std::shared_ptr<Transport> host,
    const TransportSettings& settings,
    NcclUse use,
    c10::DeviceType known) {
  const bool has_nccl = settings.device && settings.device->type() == known;
  if (!has_nccl && use == NcclUse::required) {
    throw ConfigError(format(
        "[comm] the transport \"nccl\" must have ranks on CUDA devices, but "
        "this one computes on {}; use automatic",
        settings.device ? settings.device->str() : "cpu"));
  }
  if (!has_nccl) return host;
  return std::make_shared<DeviceTransport>(std::move(host), settings, use);
}

}  // namespace accelerate::detail
