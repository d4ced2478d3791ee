#include "capture/pretend_graph.h"

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "support/pretend_device.h"

namespace accelerate::testing {

namespace {

using torch::jit::Stack;

// A tensor's own memory as bytes on the host.
struct Bytes {
  c10::Storage storage;
  std::vector<char> values;
};

class PretendGraph final : public detail::DeviceGraph, public PretendCapture {
 public:
  explicit PretendGraph(std::shared_ptr<PretendGraphCounts> counts)
      : counts_(std::move(counts)) {
    ++counts_->alive;
  }
  ~PretendGraph() override {
    PretendGraph::reset();
    --counts_->alive;
  }

  void begin(c10::MempoolId_t pool) override {
    pool_ = pool == c10::MempoolId_t{0, 0} ? c10::MempoolId_t{++last_pool, 1}
                                           : pool;
    ++counts_->begun;
    counts_->operators = 0;
    generator_ = at::globalContext().defaultGenerator(at::kCPU);
    state_ = generator_.get_state();
    is_open_ = true;
    set_pretend_capture(this);
  }
  void end() override {
    set_pretend_capture(nullptr);
    is_open_ = false;
    ++counts_->ended;
    undo();
  }
  void replay() override {
    ++counts_->replayed;
    for (const auto& step : steps_) step();
  }
  void reset() noexcept override {
    if (is_open_) {
      ++counts_->abandoned;
      set_pretend_capture(nullptr);
      is_open_ = false;
      undo();
    }
    steps_.clear();
  }
  c10::MempoolId_t pool() override { return pool_; }

  void run(const c10::OperatorHandle& op, Stack* stack) override {
    const std::lock_guard lock(mutex_);
    ++counts_->operators;
    const auto& arguments = op.schema().arguments();
    const Stack inputs(
        stack->end() - static_cast<std::ptrdiff_t>(arguments.size()),
        stack->end());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = arguments[i].alias_info();
      if (alias != nullptr && alias->isWrite())
        each_tensor(inputs[i], [&](const at::Tensor& tensor) { keep(tensor); });
    }
    run_on_pretend_device(op, stack);
    const Stack results(
        stack->end() -
            static_cast<std::ptrdiff_t>(op.schema().returns().size()),
        stack->end());
    steps_.push_back([op, inputs, results] {
      Stack again = inputs;
      run_on_pretend_device(op, &again);
      for (std::size_t i = 0; i < results.size(); ++i)
        write(again[i], results[i]);
    });
  }
  void copy(const at::Tensor& from, const at::Tensor& to) override {
    const std::lock_guard lock(mutex_);
    keep(to);
    steps_.push_back([from, to] { to.copy_(from); });
  }

 private:
  static inline c10::CaptureId_t last_pool = 0;

  static void each_tensor(
      const c10::IValue& value,
      const std::function<void(const at::Tensor&)>& visit) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
    if (!value.isList()) return;
    for (const c10::IValue& item : value.toListRef()) each_tensor(item, visit);
  }
  static void write(const c10::IValue& made, const c10::IValue& kept) {
    if (made.isTensor() && made.toTensor().defined()) {
      if (!made.toTensor().is_same(kept.toTensor()))
        kept.toTensor().copy_(made.toTensor());
    } else if (made.isTensorList() || made.isList()) {
      for (std::size_t i = 0; i < made.toListRef().size(); ++i)
        write(made.toListRef()[i], kept.toListRef()[i]);
    }
  }
  void keep(const at::Tensor& tensor) {
    for (const Bytes& bytes : changed_) {
      if (bytes.storage.unsafeGetStorageImpl() ==
          tensor.storage().unsafeGetStorageImpl())
        return;
    }
    const auto* const begin = static_cast<const char*>(tensor.storage().data());
    changed_.push_back(
        {tensor.storage(), {begin, begin + tensor.storage().nbytes()}});
  }
  void undo() {
    for (const Bytes& bytes : changed_) {
      std::copy(
          bytes.values.begin(),
          bytes.values.end(),
          static_cast<char*>(bytes.storage.mutable_data()));
    }
    changed_.clear();
    generator_.set_state(state_);
  }

  std::shared_ptr<PretendGraphCounts> counts_;
  std::mutex mutex_;
  std::vector<std::function<void()>> steps_;
  std::vector<Bytes> changed_;
  at::Generator generator_;
  at::Tensor state_;
  c10::MempoolId_t pool_ = {0, 0};
  bool is_open_ = false;
};

}  // namespace

detail::MakeGraph pretend_graphs(std::shared_ptr<PretendGraphCounts> counts) {
  return [counts = std::move(counts)] {
    return std::make_unique<PretendGraph>(counts);
  };
}

}  // namespace accelerate::testing
