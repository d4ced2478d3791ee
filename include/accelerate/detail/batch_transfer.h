#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/nested.h>
#include <accelerate/objects.h>
#include <accelerate/world.h>

/// Distributes slices of batches that rank 0 reads for all (dispatch_batches).
namespace accelerate::detail {

/// Serializes everything in a nested value except its tensors: sizes, keys,
/// numbers.
class StructureWriter {
 public:
  template <class T>
  void operator()(const T& value) {
    write(value);
  }
  [[nodiscard]] std::string bytes() const { return pack_bytes(fields_); }

 private:
  void write(const at::Tensor&) {}
  template <class T>
    requires(!HoldsTensors<T>::value && Transferable<T>)
  void write(const T& value) {
    fields_.push_back(object_to_bytes(value));
  }
  template <class T>
    requires HoldsTensors<T>::value
  void write(const std::optional<T>& value) {
    write(value.has_value());
    if (value) write(*value);
  }
  template <class T, class A>
    requires HoldsTensors<T>::value
  void write(const std::vector<T, A>& values) {
    write(values.size());
    for (const T& value : values) write(value);
  }
  template <class T, std::size_t n>
    requires HoldsTensors<T>::value
  void write(const std::array<T, n>& values) {
    for (const T& value : values) write(value);
  }
  template <class A, class B>
    requires HoldsTensors<std::pair<A, B>>::value
  void write(const std::pair<A, B>& pair) {
    write(pair.first);
    write(pair.second);
  }
  template <class... Ts>
    requires HoldsTensors<std::tuple<Ts...>>::value
  void write(const std::tuple<Ts...>& values) {
    std::apply([&](const Ts&... value) { (write(value), ...); }, values);
  }
  template <class K, class V, class C, class A>
    requires HoldsTensors<V>::value
  void write(const std::map<K, V, C, A>& values) {
    write(values.size());
    for (const auto& [key, value] : values) {
      write(key);
      write(value);
    }
  }
  template <class K, class V, class H, class E, class A>
    requires HoldsTensors<V>::value
  void write(const std::unordered_map<K, V, H, E, A>& values) {
    write(values.size());
    for (const auto* entry : entries_by_key(values)) {
      write(entry->first);
      write(entry->second);
    }
  }
  // A user's type: its tensors are sent, everything else stays as constructed.
  template <class T>
    requires(HoldsTensors<T>::value && std::is_class_v<T>)
  void write(const T&) {}

  std::vector<std::string> fields_;
};

/// Rebuilds a value from the output of StructureWriter, with undefined tensors.
class StructureReader {
 public:
  explicit StructureReader(std::string_view bytes)
      : fields_(unpack_bytes(bytes)) {}

  template <class T>
  void operator()(T& value) {
    read(value);
  }

 private:
  void read(at::Tensor&) {}
  template <class T>
    requires(!HoldsTensors<T>::value && Transferable<T>)
  void read(T& value) {
    if (next_ >= fields_.size()) throw_wrong_size(fields_.size(), next_ + 1);
    object_from_bytes(fields_[next_++], value);
  }
  template <class T>
    requires HoldsTensors<T>::value
  void read(std::optional<T>& value) {
    bool has_value = false;
    read(has_value);
    if (has_value) read(value.emplace());
  }
  template <class T, class A>
    requires HoldsTensors<T>::value
  void read(std::vector<T, A>& values) {
    std::size_t size = 0;
    read(size);
    values.resize(size);
    for (T& value : values) read(value);
  }
  template <class T, std::size_t n>
    requires HoldsTensors<T>::value
  void read(std::array<T, n>& values) {
    for (T& value : values) read(value);
  }
  template <class A, class B>
    requires HoldsTensors<std::pair<A, B>>::value
  void read(std::pair<A, B>& pair) {
    read(pair.first);
    read(pair.second);
  }
  template <class... Ts>
    requires HoldsTensors<std::tuple<Ts...>>::value
  void read(std::tuple<Ts...>& values) {
    std::apply([&](Ts&... value) { (read(value), ...); }, values);
  }
  template <class K, class V, class C, class A>
    requires HoldsTensors<V>::value
  void read(std::map<K, V, C, A>& values) {
    read_map(values);
  }
  template <class K, class V, class H, class E, class A>
    requires HoldsTensors<V>::value
  void read(std::unordered_map<K, V, H, E, A>& values) {
    read_map(values);
  }
  template <class T>
    requires(HoldsTensors<T>::value && std::is_class_v<T>)
  void read(T&) {}

  template <class Map>
  void read_map(Map& values) {
    std::size_t size = 0;
    read(size);
    for (std::size_t i = 0; i < size; ++i) {
      typename Map::key_type key{};
      read(key);
      read(values[key]);
    }
  }

  std::vector<std::string> fields_;
  std::size_t next_ = 0;
};

/// A batch that can be sliced by rows and sent.
template <class T>
struct IsObjectList : std::false_type {};
template <class T, class A>
struct IsObjectList<std::vector<T, A>>
    : std::bool_constant<!HoldsTensors<T>::value && Transferable<T>> {};
template <class T>
concept Dispatchable = std::default_initializable<T> &&
    (IsObjectList<T>::value ||
     (NestedTensors<T> &&
      requires(T& value, StructureReader& reader) { reader(value); }));

template <Dispatchable Batch>
std::int64_t rows_of(const Batch& batch) {
  if constexpr (IsObjectList<Batch>::value) {
    return static_cast<std::int64_t>(batch.size());
  } else {
    return find_batch_size(batch).value_or(0);
  }
}

/// Rows [begin, end) of `batch`. Rows past its end come from `first`, repeated
/// as necessary.
template <Dispatchable Batch>
Batch slice_filled(
    const Batch& batch,
    const Batch& first,
    std::int64_t begin,
    std::int64_t end) {
  const std::int64_t rows = rows_of(batch);
  const std::int64_t fill = rows_of(first);
  if constexpr (IsObjectList<Batch>::value) {
    Batch slice;
    for (std::int64_t i = begin; i < end; ++i) {
      slice.push_back(
          i < rows ? batch[static_cast<std::size_t>(i)]
                   : first[static_cast<std::size_t>((i - rows) % fill)]);
    }
    return slice;
  } else {
    if (end <= rows) return slice_tensors(batch, begin, end);
    std::vector<Batch> slices;
    if (begin < rows) slices.push_back(slice_tensors(batch, begin, rows));
    for (std::int64_t i = std::max(begin, rows); i < end;) {
      const std::int64_t from = (i - rows) % fill;
      const std::int64_t count = std::min(fill - from, end - i);
      slices.push_back(slice_tensors(first, from, from + count));
      i += count;
    }
    return concatenate(slices);
  }
}

/// One rank's slice of a round, with everything needed to rebuild it.
struct RoundSlice {
  std::string structure;
  std::vector<at::Tensor> tensors;
};

template <Dispatchable Batch>
RoundSlice slice_to_send(const Batch& slice) {
  if constexpr (IsObjectList<Batch>::value) {
    return {object_to_bytes(slice), {}};
  } else {
    StructureWriter writer;
    writer(slice);
    return {writer.bytes(), tensors_of(slice)};
  }
}

/// Throws ConfigError for a user's type that has fewer tensors when newly
/// constructed.
[[noreturn]] ACCELERATE_API void throw_lost_tensors(
    std::size_t sent,
    std::size_t found);

template <Dispatchable Batch>
Batch received_batch(RoundSlice slice) {
  Batch batch{};
  if constexpr (IsObjectList<Batch>::value) {
    object_from_bytes(slice.structure, batch);
  } else {
    StructureReader reader(slice.structure);
    reader(batch);
    std::size_t next = 0;
    visit_tensors(batch, TensorVisitor{[&](at::Tensor& tensor) {
                    if (next < slice.tensors.size())
                      tensor = slice.tensors[next];
                    ++next;
                  }});
    if (next != slice.tensors.size())
      throw_lost_tensors(slice.tensors.size(), next);
  }
  return batch;
}

/// The description of a round that rank 0 sends before its tensors.
struct RoundHeader {
  /// The pass, and the round within it, that a rank is about to send or
  /// receive, both counted from 0. Given by every rank, since they must agree.
  std::int64_t pass = 0;
  std::int64_t round = 0;
  bool has_batch = false;
  bool is_last = true;
  std::int64_t rows = 0;
  /// Message of rank 0's exception, and whether it was a DataError.
  std::string error = {};
  bool is_data_error = false;
};

/// Sends each rank of `group` its slice from rank 0, the only rank that passes
/// `slices`. All slices must have the same shapes. Returns this rank's slice.
/// Throws rank 0's error on the other ranks, too, and Error on a rank that is
/// in a different round than rank 0.
ACCELERATE_API RoundSlice scatter_round(
    const Group& group,
    RoundHeader& header,
    const std::vector<RoundSlice>& slices);

}  // namespace accelerate::detail
