#include "train/capture/host_reads.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

// LibTorch hands it from thread to thread, as a profiler's state.
class HostReads::Findings final : public c10::DebugInfoBase {
 public:
  explicit Findings(c10::DeviceType device) : device_(device) {}

  void add(std::string text) {
    const std::lock_guard lock(mutex_);
    if (text_.empty()) text_ = std::move(text);
  }
  [[nodiscard]] std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  [[nodiscard]] c10::DeviceType device() const { return device_; }

  static std::unique_ptr<at::ObserverContext> begin(
      const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext*);

 private:
  const c10::DeviceType device_;
  mutable std::mutex mutex_;
  std::string text_;
};

namespace {

// LibTorch has two kinds of this information for programs that need their own.
const auto info_kind = c10::DebugInfoKind::TEST_INFO_2;

// The operators in progress on this thread: their number, and the name of the
// outermost, which the program called.
thread_local int num_open = 0;
thread_local std::string outermost_operator;

bool is_on(const c10::IValue& value, c10::DeviceType device) {
  return value.isTensor() && value.toTensor().defined() &&
      value.toTensor().device().type() == device;
}

// Why the operator cannot be in a graph; empty if it can.
std::string_view obstacle_in(
    std::string_view name,
    c10::ArrayRef<const c10::IValue> inputs,
    c10::DeviceType device) {
  constexpr std::array<std::string_view, 2> kValues{
      "aten::_local_scalar_dense", "aten::equal"};
  constexpr std::array<std::string_view, 6> kShapes{
      "aten::nonzero",
      "aten::masked_select",
      "aten::_unique",
      "aten::_unique2",
      "aten::unique_dim",
      "aten::unique_consecutive"};
  if (inputs.empty()) return {};
  const auto is_one_of = [&](const auto& names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (name == "aten::copy_" && inputs.size() > 1) {
    const bool is_target = is_on(inputs[0], device);
    if (is_target && is_on(inputs[1], at::kCPU) && device != at::kCPU)
      return "which copies from the host's memory";
    if (is_on(inputs[1], device) && !is_target && inputs[0].isTensor())
      return "which copies to the host's memory";
    return {};
  }
  if (!is_on(inputs[0], device)) return {};
  if (is_one_of(kValues)) return "which gives the host a value";
  if (is_one_of(kShapes))
    return "whose result has a shape that depends on values";
  return {};
}

}  // namespace

std::unique_ptr<at::ObserverContext> HostReads::Findings::begin(
    const at::RecordFunction& function) {
  if (num_open++ == 0) outermost_operator = function.name();
  auto* const findings =
      static_cast<Findings*>(c10::ThreadLocalDebugInfo::get(info_kind));
  if (findings == nullptr) return nullptr;
  const std::string_view obstacle =
      obstacle_in(function.name(), function.inputs(), findings->device());
  if (!obstacle.empty())
    findings->add(outermost_operator + ", " + std::string(obstacle));
  return nullptr;
}

void HostReads::Findings::end(const at::RecordFunction&, at::ObserverContext*) {
  --num_open;
}

HostReads::HostReads(c10::DeviceType device)
    : findings_(std::make_shared<Findings>(device)),
      guard_(info_kind, findings_),
      callback_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&Findings::begin, &Findings::end)
              .needsInputs(true)
              .scopes({at::RecordScope::FUNCTION}))) {}

HostReads::~HostReads() { at::removeCallback(callback_); }

std::string HostReads::found() const { return findings_->text(); }

}  // namespace accelerate::detail
