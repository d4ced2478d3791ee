#include "train/plan/planned_sizes.h"

#include <algorithm>

#include "modules/disk_buffers.h"

namespace accelerate::detail {

namespace {

// This is as in host_unshard.cpp.
constexpr std::int64_t kSmallParameter = 32 << 10;

// One rank has units as well if a disk keeps its shards.
bool is_alone_on_disk(const MemoryCase& at, const StepSettings& settings) {
  return at.num_ranks == 1 && settings.on_disk != KeptOnDisk::nothing;
}

}  // namespace

PlannedSizes::PlannedSizes(
    const PlannedModel& model,
    const MemoryCase& at,
    const StepSettings& settings)
    : model_(model),
      at_(at),
      settings_(settings),
      shards_parameters_(
          at.split == MemorySplit::full_shard ||
          at.split == MemorySplit::hybrid_shard ||
          is_alone_on_disk(at, settings)),
      is_sharded_(at.num_shards > 1 || is_alone_on_disk(at, settings)),
      casts_(
          is_sharded_ && settings.computes_in_16_bits &&
          at.precision != FloatType::fp32) {}

std::int64_t PlannedSizes::local_elements(
    const PlannedParameter& parameter) const {
  if (!is_shard(parameter)) return parameter.num_elements;
  const std::int64_t rows =
      (parameter.num_rows + at_.num_shards - 1) / at_.num_shards;
  return parameter.num_elements /
      std::max<std::int64_t>(parameter.num_rows, 1) * rows;
}

std::int64_t PlannedSizes::local_element_bytes(
    const PlannedParameter& parameter) const {
  const bool is_upcast = casts_ && is_shard(parameter) && parameter.is_trained;
  return is_upcast ? std::max<std::int64_t>(parameter.element_bytes, 4)
                   : parameter.element_bytes;
}

std::int64_t PlannedSizes::full_element_bytes(
    const PlannedParameter& parameter) const {
  const bool is_cast =
      casts_ && is_shard(parameter) && !parameter.keeps_precision;
  return is_cast ? std::min<std::int64_t>(parameter.element_bytes, 2)
                 : parameter.element_bytes;
}

PlannedSizes::Files PlannedSizes::files() const {
  std::int64_t largest = 0, parameters = 0, state = 0;
  for (const PlannedParameter& each : model_.parameters) {
    largest = std::max(largest, is_shard(each) ? local_elements(each) : 0);
    const bool has_master =
        local_element_bytes(each) != full_element_bytes(each);
    const std::int64_t rows = local_elements(each) * full_element_bytes(each);
    if (is_on_disk(each)) parameters += rows;
    if (!has_state_on_disk(each) || !each.is_trained) continue;
    state += local_bytes(each) * (has_master ? 2 : 1) +
        local_elements(each) * settings_.state_bytes;
  }
  const auto most =
      static_cast<std::int64_t>(disk_buffer_bytes({.largest_shard = largest}));
  return {
      parameters + state, std::min(parameters, most) + std::min(state, most)};
}

bool PlannedSizes::travels_alone(const PlannedParameter& parameter) const {
  return full_bytes(parameter) >= kSmallParameter;
}

std::int64_t PlannedSizes::local_gradients() const {
  std::int64_t bytes = 0;
  for (const PlannedParameter& each : model_.parameters)
    bytes += each.is_trained ? local_bytes(each) : 0;
  return bytes;
}

std::int64_t PlannedSizes::slots() const {
  std::int64_t whole = model_.buffer_bytes;
  for (const PlannedParameter& each : model_.parameters)
    whole += each.num_bytes();
  const std::int64_t initial =
      at_.num_ranks > 1 ? std::min(whole, settings_.slot_bytes) : 0;
  return 2 * std::min(largest_message(), settings_.slot_bytes) +
      2 * initial / at_.num_ranks;
}

// Buckets of a slot's size or more are averaged in place instead.
std::int64_t PlannedSizes::largest_message() const {
  std::int64_t largest = 0;
  std::int64_t buckets = 0;
  for (const PlannedParameter& each : model_.parameters) {
    if (!each.is_trained) continue;
    const std::int64_t bytes = full_bytes(each);
    if (is_shard(each)) {
      largest = std::max(largest, bytes - bytes / at_.num_shards);
    } else if (has_buckets()) {
      buckets += bytes;
    }
  }
  return buckets < settings_.slot_bytes ? std::max(largest, buckets) : largest;
}

}  // namespace accelerate::detail
