#include "data/loading/worker_pool.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::detail {

struct Worker::SideStream {
  c10::Stream stream;
};

Worker::Worker() = default;
Worker::~Worker() = default;

at::Generator& Worker::generator(std::uint64_t seed) {
  if (!generator_.defined()) generator_ = at::detail::createCPUGenerator(seed);
  generator_.set_current_seed(seed);
  return generator_;
}

std::shared_ptr<void> Worker::on_side_stream(
    at::Device device,
    const std::function<void()>& copy) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (!side_stream_ || side_stream_->stream.device() != device) {
    side_stream_ = std::make_unique<SideStream>(
        SideStream{guard.getStreamFromGlobalPool(device)});
  }
  const c10::StreamGuard on_stream(side_stream_->stream);
  copy();
  auto done = std::make_shared<c10::Event>(device.type());
  done->record(side_stream_->stream);
  return done;
}

void wait_for_side_stream(
    const std::shared_ptr<void>& done,
    at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  static_cast<c10::Event*>(done.get())->block(guard.getStream(device));
}

void use_on_current_stream(const at::Tensor& tensor) {
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(
      tensor.storage().data_ptr(), guard.getStream(tensor.device()));
}

}  // namespace accelerate::detail
