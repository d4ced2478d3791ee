#include "comm/transport/automatic_transport.h"

#include <utility>

#include "base/text.h"
#include "comm/transport/gloo/gloo_transport.h"
#include "comm/transport/shared_memory/shared_memory_transport.h"

namespace accelerate::detail {

namespace {

class AutomaticTransport final : public Transport {
 public:
  explicit AutomaticTransport(TransportSettings settings)
      : settings_(std::move(settings)),
        memory_(make_shared_memory_transport(settings_)) {}

  [[nodiscard]] const TransportFacts& facts() const override {
    return memory_->facts();
  }

  [[nodiscard]] std::shared_ptr<Connection> connect(
      const ConnectRequest& request) override {
    try {
      return memory_->connect(request);
    } catch (const CannotShareMemory& error) {
      if (settings_.is_single_node && !has_logged_) {
        request.logger.log(
            LogLevel::info,
            "comm",
            format("group \"{}\" uses Gloo: {}", request.name, error.what()));
        has_logged_ = true;
      }
    }
    // Not before it is needed: it opens sockets.
    if (!network_) network_ = make_gloo_transport(settings_);
    return network_->connect(request);
  }

  [[nodiscard]] std::optional<std::string> describe_failure(
      const std::exception& error) const override {
    auto text = memory_->describe_failure(error);
    if (!text && network_) text = network_->describe_failure(error);
    return text;
  }

 private:
  TransportSettings settings_;
  std::shared_ptr<Transport> memory_;
  std::shared_ptr<Transport> network_;
  bool has_logged_ = false;
};

}  // namespace

std::shared_ptr<Transport> make_automatic_transport(
    const TransportSettings& settings) {
  return std::make_shared<AutomaticTransport>(settings);
}

}  // namespace accelerate::detail
