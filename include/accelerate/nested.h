#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/nested_parts.h>
#include <accelerate/detail/object_bytes.h>
#include <accelerate/export.h>
#include <accelerate/visit_tensors.h>
#include <accelerate/world.h>

namespace accelerate {

struct SendToDeviceOptions {
  /// Return before copies from pinned memory are complete; work that is queued
  /// on the device later waits for them. Tensors that are sent to the CPU must
  /// not be read before the device is synchronised.
  bool non_blocking = false;
  /// Keys of maps, at any depth, whose values stay where they are.
  std::vector<std::string> skip_keys = {};
};

/// The visitor of send_to_device().
struct ACCELERATE_API DeviceSender {
  /// Where tensors go.
  at::Device device;
  /// What send_to_device() was given; must outlive the visitor.
  const SendToDeviceOptions& options;

  /// Replaces the tensor by its copy on the device.
  void operator()(at::Tensor& tensor) const;
  /// Whether the value of this key is visited.
  [[nodiscard]] bool enters(std::string_view key) const;
};

/// Returns the value with every tensor on `device`.
template <NestedTensors T>
T send_to_device(
    T value,
    at::Device device,
    const SendToDeviceOptions& options = {}) {
  visit_tensors(value, DeviceSender{device, options});
  return value;
}
template <NestedTensors T>
T send_to_device(T value, at::Device device, bool non_blocking) {
  return send_to_device(
      std::move(value),
      device,
      SendToDeviceOptions{.non_blocking = non_blocking});
}

/// Accelerate's name.
using Reduction = ReduceOp;

namespace detail {
// Replace each tensor by the result. Undefined tensors stay undefined.
ACCELERATE_API void gather_in_place(
    const NestedParts& parts,
    const Group& group);
ACCELERATE_API void reduce_in_place(
    const NestedParts& parts,
    const Group& group,
    std::optional<ReduceOp> op,
    double scale);
ACCELERATE_API void broadcast_in_place(
    const NestedParts& parts,
    const Group& group,
    int from_process);
ACCELERATE_API void pad_in_place(
    const NestedParts& parts,
    const Group& group,
    std::int64_t dim,
    double pad_index,
    bool pad_first);
ACCELERATE_API void
slice_in_place(const NestedParts& parts, std::int64_t begin, std::int64_t end);
ACCELERATE_API void pad_rows(
    const NestedParts& parts,
    std::int64_t batch_size,
    std::int64_t num_processes,
    std::int64_t dim);
ACCELERATE_API void copy_numbers(
    const at::Tensor& tensor,
    std::vector<double>& numbers);
ACCELERATE_API void copy_numbers(
    const at::Tensor& tensor,
    std::vector<std::int64_t>& numbers);
/// This rank's share of `size` items as [begin, end): the first `size % count`
/// ranks have one more.
ACCELERATE_API std::pair<std::int64_t, std::int64_t>
share_of(std::int64_t size, int rank, int count);
/// How often the last of `size` items is repeated to pad this rank's share.
ACCELERATE_API std::int64_t
num_repeats(std::int64_t size, int rank, int count, bool apply_padding);

/// Throws ConfigError unless all are equal and, for padding, above 0.
ACCELERATE_API void require_equal_lengths(
    const std::vector<std::int64_t>& lengths,
    bool is_padded);
inline std::int64_t length_of(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? 1 : tensor.size(0);
}
template <class T>
std::int64_t length_of(const T& items) {
  return static_cast<std::int64_t>(items.size());
}

// See find_batch_size() and convert_to_fp32().
ACCELERATE_API std::optional<std::int64_t> first_size(
    const std::vector<at::Tensor>& tensors);
ACCELERATE_API void to_single(at::Tensor& tensor);

template <class T, class Change>
T with_parts(T value, Change&& change) {
  // Callers reject other types; the compiler need not repeat that.
  if constexpr (NestedTensors<T>) change(parts_of(value));
  return value;
}
}  // namespace detail

/// Returns `value` with every tensor concatenated over all ranks along
/// dimension 0, in rank order, on every rank; a 0-d tensor counts as one row.
/// With one rank, that is the value itself. In debug mode, all shapes must
/// agree; otherwise the number of rows may differ per rank, but not the other
/// dimensions. Returns new tensors; nothing is recorded by autograd. Lists
/// beside the tensors (vectors without tensors) are joined in the same order;
/// other numbers and strings must be the same on all ranks.
///
/// This and the functions below that communicate first compare what the ranks
/// pass, which costs a message of 8 bytes per rank; Group's collectives do so
/// in debug mode only. If the numbers of tensors, dtypes, shapes or keys do not
/// agree, they throw DistributedError on every rank, saying what each rank
/// passed; the group stays usable. A list that cannot be sent (objects.h)
/// throws ConfigError.
template <class T>
T gather(const T& value, const Group& group) {
  static_assert(
      NestedTensors<T>,
      "gather() takes tensors; for numbers, strings and other objects call "
      "gather_object() with a std::vector of them");
  return detail::with_parts(
      value, [&](const auto& parts) { detail::gather_in_place(parts, group); });
}
/// Gathers a braced list of tensors.
template <class T>
std::vector<T> gather(std::initializer_list<T> values, const Group& group) {
  return gather(std::vector<T>(values), group);
}

/// Returns `value` with every tensor reduced over all ranks by `op`, times
/// `scale`; with std::nullopt (Accelerate's "none"), every rank keeps its own.
/// The mean, which is the default as in Accelerate's utils.reduce(), needs
/// floating-point or complex values; Accelerator::reduce() sums unless told
/// otherwise, as Accelerate's does. Returns new tensors. Lists, numbers and
/// strings beside them must be the same on all ranks.
template <class T>
T reduce(
    const T& value,
    const Group& group,
    std::optional<ReduceOp> op = ReduceOp::mean,
    double scale = 1.0) {
  static_assert(
      NestedTensors<T>,
      "reduce() takes tensors; put numbers into one: torch::tensor(x)");
  return detail::with_parts(value, [&](const auto& parts) {
    detail::reduce_in_place(parts, group, op, scale);
  });
}

/// Returns `value` with the values of rank `from_process` in every tensor.
/// Shapes and dtypes must agree on all ranks. Returns new tensors. Lists,
/// numbers and strings beside them also become those of `from_process`.
template <class T>
T broadcast(const T& value, const Group& group, int from_process = 0) {
  static_assert(
      NestedTensors<T>,
      "broadcast() takes tensors; for numbers, strings and other objects call "
      "broadcast_object()");
  return detail::with_parts(value, [&](const auto& parts) {
    detail::broadcast_in_place(parts, group, from_process);
  });
}

/// Returns `value` with every tensor padded along `dim` to the largest size of
/// any rank, with `pad_index` after its values (or before, with `pad_first`).
/// Tensors without that dimension stay as they are. `dim` can count from the
/// end. Lists beside the tensors must have as many items on all ranks. Throws
/// ConfigError on all ranks if the dtype of a tensor has no such value.
template <class T>
T pad_across_processes(
    const T& value,
    const Group& group,
    std::int64_t dim = 0,
    double pad_index = 0,
    bool pad_first = false) {
  static_assert(
      NestedTensors<T>,
      "pad_across_processes() takes tensors, and types with visit_tensors()");
  return detail::with_parts(value, [&](const auto& parts) {
    detail::pad_in_place(parts, group, dim, pad_index, pad_first);
  });
}

/// Concatenates corresponding tensors of all `values` along `dim`, and for
/// dimension 0 the lists beside them, which must have as many items as their
/// value has rows. Everything else must be equal in all values. Throws
/// ConfigError, with the place, if it is not, for an empty list, or for values
/// of different structure.
template <NestedTensors T>
T concatenate(const std::vector<T>& values, std::int64_t dim = 0) {
  std::vector<T> copies = values;
  std::vector<detail::NestedParts> parts;
  for (T& value : copies) parts.push_back(detail::parts_of(value));
  detail::join_parts(parts, {.dim = dim});
  return std::move(copies.front());
}

/// Returns rows [begin, end) of every tensor, as views, and of every list
/// beside them; `end` is clamped to the size. Other numbers and strings, and
/// undefined tensors, stay as they are. Throws ConfigError, with the place, for
/// a list that does not have find_batch_size() items, and for a 0-d tensor.
template <NestedTensors T>
T slice_tensors(T value, std::int64_t begin, std::int64_t end) {
  detail::slice_in_place(detail::parts_of(value), begin, end);
  return value;
}

/// Size of dimension 0 of the first tensor that has one; std::nullopt if none
/// has.
template <NestedTensors T>
std::optional<std::int64_t> find_batch_size(const T& value) {
  return detail::first_size(tensors_of(value));
}

/// Pads every tensor of `batch_size` rows along `dim` with zeros, so that
/// `num_processes` ranks get equally many rows each; along dimension 0, also
/// lists beside them, with zeros or empty items. The sizes are exactly those of
/// Accelerate's pad_input_tensors. Throws ConfigError, with the place, for a
/// list that does not have `batch_size` items.
template <NestedTensors T>
T pad_input_tensors(
    T value,
    std::int64_t batch_size,
    std::int64_t num_processes,
    std::int64_t dim = 0) {
  detail::pad_rows(detail::parts_of(value), batch_size, num_processes, dim);
  return value;
}

/// Returns the numbers of all tensors in one flat list, row-major, for metrics
/// and logs: as doubles by default, including integers, booleans and bf16; or,
/// with `listify<std::int64_t>(value)`, as exact integers. Waits for the
/// device. Throws ConfigError for an integer that a double would round (beyond
/// 2^53), and, if integers are asked for, for tensors of another kind.
template <class Number = double, NestedTensors T>
  requires std::same_as<Number, double> || std::same_as<Number, std::int64_t>
std::vector<Number> listify(const T& value) {
  std::vector<Number> numbers;
  for (const at::Tensor& tensor : tensors_of(value))
    detail::copy_numbers(tensor, numbers);
  return numbers;
}

/// Returns the value with half-precision tensors (fp16, bf16) in single
/// precision.
template <NestedTensors T>
T convert_to_fp32(T value) {
  visit_tensors(value, TensorVisitor{detail::to_single});
  return value;
}

/// Returns a copy of this rank's share of a list that every rank has in full;
/// if it does not divide evenly, the first ranks have one item more. With
/// `apply_padding`, the other ranks repeat the list's last item to have as
/// many.
template <class T>
std::vector<T> split_between_processes(
    const std::vector<T>& items,
    const Group& group,
    bool apply_padding = false) {
  const std::int64_t size = detail::length_of(items);
  const auto share = detail::share_of(size, group.rank(), group.size());
  std::vector<T> own(items.begin() + share.first, items.begin() + share.second);
  const std::int64_t repeats =
      detail::num_repeats(size, group.rank(), group.size(), apply_padding);
  for (std::int64_t i = 0; i < repeats; ++i) own.push_back(items.back());
  return own;
}
/// Splits a tensor along dimension 0; a 0-d tensor goes to every rank in full.
ACCELERATE_API at::Tensor split_between_processes(
    const at::Tensor& tensor,
    const Group& group,
    bool apply_padding = false);
/// Splits every value of a map. Throws ConfigError if the values differ in
/// length, or are empty and to be padded.
template <class K, class V, class C>
std::map<K, V, C> split_between_processes(
    const std::map<K, V, C>& values,
    const Group& group,
    bool apply_padding = false) {
  std::vector<std::int64_t> lengths;
  for (const auto& [key, value] : values)
    lengths.push_back(detail::length_of(value));
  detail::require_equal_lengths(lengths, apply_padding);
  std::map<K, V, C> own;
  for (const auto& [key, value] : values) {
    own.emplace(key, split_between_processes(value, group, apply_padding));
  }
  return own;
}

template <class T>
T World::split_between_processes(const T& items, bool apply_padding) const {
  return accelerate::split_between_processes(items, group(), apply_padding);
}

}  // namespace accelerate
