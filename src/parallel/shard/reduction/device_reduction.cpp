#include "parallel/shard/reduction/device_reduction.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "parallel/shard/copy_event.h"

namespace accelerate::detail {

namespace {

// fp16 gradients are divided before they are summed as well, so that the sum is
// less likely to overflow: by a power of two near the root of the number of
// ranks. (As PyTorch's FSDP does.)
double divisor_before_sum(at::ScalarType dtype, int num_ranks) {
  double divisor = 1;
  if (dtype != at::kHalf) return divisor;
  while (2 * divisor * divisor <= num_ranks) divisor *= 2;
  return divisor;
}

at::Tensor divided(const at::Tensor& gradient, int num_ranks) {
  const double divisor = divisor_before_sum(gradient.scalar_type(), num_ranks);
  return divisor == 1 ? gradient : gradient.div(divisor);
}

// Gives every rank as many rows.
at::Tensor padded(
    const at::Tensor& full,
    const std::vector<std::int64_t>& begins) {
  if (are_even(begins)) return full;
  const auto num_ranks = static_cast<int>(begins.size()) - 1;
  const std::int64_t most_rows = full.size(0) / num_ranks + 1;
  std::vector<std::int64_t> sizes = full.sizes().vec();
  sizes[0] = num_ranks * most_rows;
  const at::Tensor result = at::zeros(sizes, full.options());
  for (int rank = 0; rank < num_ranks; ++rank) {
    const at::Tensor rows = rows_between(full, begins, rank);
    result.narrow(0, rank * most_rows, rows.size(0)).copy_(rows);
  }
  return result;
}

}  // namespace

DeviceReduction::DeviceReduction(const UnitShards& unit, Group group)
    : unit_(unit),
      group_(std::move(group)),
      device_(unit.parameters.front().full.device()),
      taken_(unit.trainable.size()) {
  for (std::size_t place = taken_.size(); place-- > 0;) {
    if (!unit_.trained(place).is_small()) large_places_.push_back(place);
  }
}

void DeviceReduction::take(std::size_t place) {
  Taken& taken = taken_[place];
  taken.gradient = unit_.trained(place).take_gradient();
  taken.was_used = taken.gradient.defined();
  taken.is_taken = true;
}

void DeviceReduction::take_rest() {
  for (std::size_t place = 0; place < taken_.size(); ++place) {
    if (!taken_[place].is_taken) take(place);
  }
  is_rest_taken_ = true;
}

bool DeviceReduction::can_begin() const {
  if (next_ == large_places_.size()) return is_rest_taken_;
  return next_ < large_places_.size() && taken_[large_places_[next_]].is_taken;
}

void DeviceReduction::begin_next() {
  if (next_ < large_places_.size()) {
    begin_large(large_places_[next_]);
  } else {
    begin_rest();
  }
  ++next_;
}

at::Tensor DeviceReduction::gradient_of(std::size_t place) {
  const ShardedParameter& parameter = unit_.trained(place);
  const at::Tensor gradient = std::exchange(taken_[place].gradient, {});
  if (gradient.defined()) return divided(gradient, group_.size());
  return at::zeros(
      parameter.full.sizes(),
      at::TensorOptions(parameter.reduced_in()).device(device_));
}

void DeviceReduction::begin_large(std::size_t place) {
  const at::Tensor input =
      padded(gradient_of(place), unit_.trained(place).row_begins);
  at::Tensor& sum = taken_[place].sum;
  if (group_.size() == 1) {
    sum = input;
    return;
  }
  std::vector<std::int64_t> sizes = input.sizes().vec();
  sizes[0] /= group_.size();
  sum = at::empty(sizes, input.options());
  inputs_.push_back(input);
  in_flight_.push_back(BegunExchange::reduce_scatter(group_, sum, input));
}

DeviceReduction::Pack& DeviceReduction::pack_with(at::ScalarType dtype) {
  for (Pack& pack : packs_) {
    if (pack.dtype == dtype) return pack;
  }
  packs_.push_back({dtype, RowPack(group_.size())});
  return packs_.back();
}

void DeviceReduction::begin_rest() {
  for (std::size_t place = 0; place < taken_.size(); ++place) {
    const ShardedParameter& parameter = unit_.trained(place);
    if (!parameter.is_small()) continue;
    Pack& pack = pack_with(parameter.reduced_in());
    pack.layout.add(
        parameter.full.sizes(), parameter.reduced_in(), parameter.row_begins);
    pack.places.push_back(place);
  }
  // Flags are added up as floating point numbers.
  const bool may_share =
      !packs_.empty() && at::isFloatingType(packs_.front().dtype);
  flags_pack_ = may_share ? 0 : packs_.size();
  Pack& with_flags = may_share ? packs_.front() : pack_with(at::kFloat);
  flags_begin_ = with_flags.layout.add_to_all(
      static_cast<std::int64_t>(taken_.size()), with_flags.dtype);
  for (Pack& pack : packs_) begin_pack(pack);
}

void DeviceReduction::begin_pack(Pack& pack) {
  const at::Tensor bytes = pack.layout.make(device_);
  const at::Tensor input = bytes.view(pack.dtype);
  // Room that nobody uses is summed as well.
  input.zero_();
  for (std::size_t i = 0; i < pack.places.size(); ++i)
    pack.layout.pack(bytes, i, gradient_of(pack.places[i]));
  if (&pack == &packs_[flags_pack_]) {
    const at::Tensor flags = input.narrow(
        1,
        flags_begin_ / input.element_size(),
        static_cast<std::int64_t>(taken_.size()));
    flags.fill_(1);
    for (std::size_t place = 0; place < taken_.size(); ++place) {
      if (!taken_[place].was_used)
        flags.select(1, static_cast<std::int64_t>(place)).zero_();
    }
  }
  if (group_.size() == 1) {
    pack.sum = input[0];
    return;
  }
  const at::Tensor sum = at::empty({1, input.size(1)}, input.options());
  pack.sum = sum[0];
  inputs_.push_back(input);
  in_flight_.push_back(BegunExchange::reduce_scatter(group_, sum, input));
}

void DeviceReduction::join() {
  for (BegunExchange& each : in_flight_) each.wait();
  in_flight_.clear();
  inputs_.clear();
}

std::vector<at::Tensor> DeviceReduction::means() const {
  std::vector<at::Tensor> rows(taken_.size());
  const int mine = group_.rank();
  for (const Pack& pack : packs_) {
    const at::Tensor bytes = pack.sum.view(at::kByte);
    for (std::size_t i = 0; i < pack.places.size(); ++i)
      rows[pack.places[i]] = pack.layout.rows_in(bytes, i, mine);
  }
  for (std::size_t place = 0; place < rows.size(); ++place) {
    const ShardedParameter& parameter = unit_.trained(place);
    at::Tensor& sum = rows[place];
    if (!sum.defined())
      sum = taken_[place].sum.narrow(0, 0, parameter.local.size(0));
    const double left = group_.size() /
        divisor_before_sum(parameter.reduced_in(), group_.size());
    sum = sum.to(parameter.local.scalar_type())
              .view(parameter.local.sizes())
              .div_(left);
  }
  return rows;
}

std::vector<bool> DeviceReduction::used_by_any() const {
  const Pack& pack = packs_[flags_pack_];
  const auto count = static_cast<std::int64_t>(taken_.size());
  const at::Tensor sums = pack.sum.narrow(
      0,
      flags_begin_ / static_cast<std::int64_t>(c10::elementSize(pack.dtype)),
      count);
  // On the host: it decides which shards get gradients.
  const at::Tensor flags = sums.to(at::kFloat).cpu();
  std::vector<bool> used;
  for (std::int64_t place = 0; place < count; ++place)
    used.push_back(flags.const_data_ptr<float>()[place] > 0);
  return used;
}

void DeviceReduction::begin_settling(const CopyStream& copies) {
  join();
  means_ = means();
  std::optional<CopyStream::Scope> scope;
  for (std::size_t place = 0; place < means_.size(); ++place) {
    if (!unit_.trained(place).local.is_cpu()) continue;
    if (!scope) scope.emplace(copies);
    const at::Tensor mean = means_[place];
    // On the host: its optimizers step on offloaded shards.
    const auto options = mean.options().device(at::kCPU);
    means_[place] = at::empty(mean.sizes(), options.pinned_memory(true))
                        .copy_(mean, /*non_blocking=*/true);
    copied_.push_back(mean);
  }
  if (scope) copies_end_ = event_after_copies(device_);
}

void DeviceReduction::settle() {
  if (copies_end_) copies_end_->synchronize();
  copied_.clear();
  const bool used_all =
      std::all_of(taken_.begin(), taken_.end(), [](const Taken& taken) {
        return taken.was_used;
      });
  std::optional<std::vector<bool>> used;
  if (!used_all) used = used_by_any();
  for (std::size_t place = 0; place < means_.size(); ++place) {
    if (!used || (*used)[place])
      unit_.trained(place).add_gradient(means_[place]);
  }
  // Frees sums in another dtype than the shards'.
  means_.clear();
  packs_.clear();
  for (Taken& taken : taken_) taken.sum.reset();
}

}  // namespace accelerate::detail
