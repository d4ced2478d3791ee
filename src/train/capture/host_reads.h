#pragma once

#include <memory>
#include <string>

#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace accelerate::detail {

/// While alive, looks among the operators of this thread, and of backwards that
/// it starts, for the first that a graph of the device cannot contain: one that
/// returns a value to the host, copies between the device and the host, or
/// makes a result whose shape depends on values.
class HostReads {
 public:
  explicit HostReads(c10::DeviceType device);
  ~HostReads();
  HostReads(const HostReads&) = delete;
  HostReads& operator=(const HostReads&) = delete;

  /// "aten::item, which gives the host a value"; empty if there was none.
  [[nodiscard]] std::string found() const;

 private:
  class Findings;

  std::shared_ptr<Findings> findings_;
  c10::DebugInfoGuard guard_;
  at::CallbackHandle callback_;
};

}  // namespace accelerate::detail
