#include "parallel/replicate/bucket_reducer.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include <torch/csrc/distributed/c10d/logger.hpp>

#include "base/text/text.h"
#include "comm/group/group_impl.h"

namespace accelerate::detail {

namespace {

// The Logger uses the Reducer in its destructor, so it is declared after it.
struct LoggedReducer {
  std::shared_ptr<BucketReducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
};

// LibTorch added arguments with defaults after 2.11; the twelve of 2.11 are
// enough for all versions.
template <class Reducer = BucketReducer>
std::shared_ptr<Reducer> construct(
    const TrainableRows& rows,
    const c10::intrusive_ptr<c10d::ProcessGroup>& process_group,
    const ReplicateOptions& options) {
  const std::vector<bool> dense(rows.tensors.size(), false);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      rows.tensors,
      {static_cast<std::size_t>(options.first_bucket_bytes),
       static_cast<std::size_t>(options.bucket_bytes)},
      dense);
  // Gradients become ready from the last layer to the first.
  std::reverse(buckets.begin(), buckets.end());
  return std::make_shared<Reducer>(
      rows.tensors,
      std::move(buckets),
      process_group,
      dense,
      options.bucket_bytes,
      options.find_unused_parameters,
      options.gradient_as_bucket_view,
      rows.names,
      options.first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false,
      std::vector<std::int64_t>{});
}

}  // namespace

ParameterKind kind_of(const at::Tensor& parameter) {
  return {parameter.scalar_type(), parameter.device(), parameter.numel()};
}

TrainableRows trainable_rows(
    const ParameterTable& table,
    bool (*is_chosen)(const Parameter& row)) {
  TrainableRows rows;
  for (const Parameter* row : table.trainable()) {
    if (!is_chosen(*row)) continue;
    rows.names.emplace(rows.tensors.size(), row->name);
    rows.names_by_tensor.emplace(row->tensor.unsafeGetTensorImpl(), row->name);
    rows.tensors.push_back(row->tensor);
    rows.kinds.push_back(kind_of(row->tensor));
  }
  return rows;
}

bool BucketReducer::was_reached(bool is_first) const {
  if (static_graph_ && is_first) {
    return std::any_of(
        numGradHooksTriggeredMap_.begin(),
        numGradHooksTriggeredMap_.end(),
        [](const auto& entry) { return entry.second > 0; });
  }
  return !expect_autograd_hooks_ || require_finalize_;
}

void BucketReducer::share_buckets(Connection& connection) {
  // Below this size, copies cost less than a segment.
  constexpr std::int64_t kLeastBytes = std::int64_t{256} << 10U;
  constexpr std::int64_t kAlignment = 64;
  const auto room_for = [](const Bucket& bucket) {
    const auto bytes = static_cast<std::int64_t>(bucket.gradients.nbytes());
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::int64_t total = 0;
  for (const Bucket& bucket : buckets_) {
    // Sparse gradients use no bucket memory.
    if (!bucket.gradients.defined() || !bucket.gradients.is_cpu()) return;
    total += room_for(bucket);
  }
  if (total < kLeastBytes) return;
  const at::Tensor memory = connection.reducible_memory(total);
  if (!memory.defined()) return;
  std::int64_t begin = 0;
  for (Bucket& bucket : buckets_) {
    auto* const data =
        static_cast<std::byte*>(memory.mutable_data_ptr()) + begin;
    std::memcpy(
        data, bucket.gradients.const_data_ptr(), bucket.gradients.nbytes());
    begin += room_for(bucket);
    // The views of a bucket share its storage, so they move with it.
    const auto* const owner = new at::Tensor(memory);
    bucket.gradients.storage().set_data_ptr_noswap(c10::DataPtr(
        data,
        const_cast<at::Tensor*>(owner),
        [](void* held) { delete static_cast<at::Tensor*>(held); },
        at::kCPU));
  }
}

void BucketReducer::mark_used(std::size_t index) {
  local_used_map_.data_ptr<int>()[index] = 1;
}

void BucketReducer::keep_times(bool keep) {
  ddp_runtime_logging_sample_rate_ =
      keep ? 1 : c10d::kDDPRuntimeLoggingSampleRate;
  if (!keep || timer_ == nullptr) return;
  // A backward that does not get that far would leave the old time in place.
  timer_->getTimeRef(c10d::Timer::Event::kBackwardCommEnd) = c10d::kUnsetTime;
}

ReductionTimes BucketReducer::times() const {
  using Event = c10d::Timer::Event;
  if (timer_ == nullptr) return {};
  const auto begin = timer_->getTimestamp(Event::kBackwardCommStart);
  const auto computed = timer_->getTimestamp(Event::kBackwardComputeEnd);
  const auto end = timer_->getTimestamp(Event::kBackwardCommEnd);
  if (!begin || !computed || !end) return {};
  return {
      .hidden_ns = std::max<std::int64_t>(*computed - *begin, 0),
      .exposed_ns =
          std::max<std::int64_t>(*end - std::max(*begin, *computed), 0)};
}

void BucketReducer::restore_uses() {
  for (auto& [index, count] : numGradHooksTriggeredMap_) {
    count = uses_.empty() ? 0 : uses_.at(index);
  }
}

std::shared_ptr<BucketReducer> make_reducer(
    const TrainableRows& rows,
    const Group& group,
    const ReplicateOptions& options) {
  const auto owner = std::make_shared<LoggedReducer>();
  owner->reducer = construct(rows, group.impl()->process_group, options);
  owner->logger = std::make_shared<c10d::Logger>(owner->reducer);
  owner->reducer->set_logger(owner->logger);
  if (options.static_graph) owner->reducer->set_static_graph();
  owner->reducer->share_buckets(*group.impl()->connection);
  return {owner, owner->reducer.get()};
}

std::vector<std::string> names_without_gradient(
    const std::string& message,
    const TrainableRows& rows) {
  constexpr std::string_view kMark = "did not receive grad for rank ";
  std::vector<std::string> found;
  std::size_t at = message.find(kMark);
  if (at == std::string::npos) return found;
  at = message.find(':', at);
  while (at != std::string::npos && ++at < message.size()) {
    if (message[at] == ' ') continue;
    std::size_t end = at;
    while (end < message.size() &&
           std::isdigit(static_cast<unsigned char>(message[end])))
      ++end;
    if (end == at) break;
    const auto name = rows.names.find(std::stoul(message.substr(at, end - at)));
    if (name != rows.names.end())
      found.push_back(format("\"{}\"", name->second));
    at = end - 1;
  }
  return found;
}

}  // namespace accelerate::detail
