#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/standard_types.h>
#include <accelerate/export.h>
#include <accelerate/nested.h>

namespace accelerate {

/// The tensors that a layer of a pipeline takes or returns.
using PipelineTensors = std::vector<at::Tensor>;

namespace detail {

/// What a layer of a pipeline takes or returns: tensors, and how they were
/// nested. An optional without a value has an undefined tensor.
struct PipelineValue {
  PipelineTensors tensors;
  /// One character per part, in order: `t` for a tensor, `n` for an optional
  /// without a value, `(` and `)` around a tuple, pair or array, `[` and `]`
  /// around a vector, `{` and `}` around a map, in which each value is preceded
  /// by the length of its key, `:` and the key.
  std::string structure;
};

/// Reads a PipelineValue part by part. Throws ConfigError, naming the layer, if
/// the next part is not the requested one.
class ACCELERATE_API PipelineValueReader {
 public:
  /// With `ignores_nesting`, tensors are read one after another, however they
  /// were nested, and only their number counts.
  PipelineValueReader(
      std::string_view layer,
      const PipelineValue& value,
      bool ignores_nesting = false)
      : layer_(layer), value_(value), ignores_nesting_(ignores_nesting) {}

  at::Tensor tensor();
  /// Whether the next optional has no value; if so, skips it.
  bool skip_none();
  /// Enters a tuple, pair, array or vector, or a map.
  void enter_list();
  void enter_map();
  /// Leaves the innermost part entered, if it ends here.
  bool leave();
  /// Leaves the innermost part entered, which must end here.
  void end();
  /// The key of the map's next entry.
  std::string key();
  /// Must be called once everything has been read.
  void finish();

 private:
  [[nodiscard]] char next() const;
  [[noreturn]] void complain(const char* wanted) const;

  std::string_view layer_;
  const PipelineValue& value_;
  bool ignores_nesting_;
  std::size_t place_ = 0;
  std::size_t num_tensors_ = 0;
};

/// These stand for the name of a layer in messages.
inline constexpr std::string_view kLossFunction = "the loss function";
inline constexpr std::string_view kOutputsAs = "outputs_as()";

template <class T>
concept TensorMap = (kIs<T, std::map> || kIs<T, std::unordered_map>) &&
    std::is_same_v<typename T::key_type, std::string> &&
    std::is_same_v<typename T::mapped_type, at::Tensor>;
template <class T>
concept PipelineParts = PairOrTuple<T> || kIsArray<T>;

// Whether a value of this type can only be built from one with the same
// nesting. For other types, only the number of tensors counts.
template <class T>
consteval bool needs_nesting();
template <class... Ts>
consteval bool needs_nesting_among(TypeList<Ts...>) {
  return (needs_nesting<Ts>() || ...);
}
template <class T>
consteval bool needs_nesting() {
  if constexpr (PipelineParts<T>) {
    return needs_nesting_among(inner_types<T>());
  } else if constexpr (kIs<T, std::optional>) {
    return !std::is_same_v<typename T::value_type, at::Tensor>;
  } else {
    return TensorMap<T> || kIs<T, std::vector>;
  }
}

/// Appends a value of any type that visit_tensors accepts.
template <class T>
void append_to(PipelineValue& all, const T& value) {
  if constexpr (std::is_convertible_v<T, at::Tensor>) {
    all.tensors.push_back(value);
    all.structure += 't';
  } else if constexpr (kIs<T, std::optional>) {
    if (value) return append_to(all, *value);
    all.tensors.emplace_back();
    all.structure += 'n';
  } else if constexpr (PipelineParts<T> || kIs<T, std::vector>) {
    all.structure += PipelineParts<T> ? '(' : '[';
    for_each_value(value, [&](const auto& part) { append_to(all, part); });
    all.structure += PipelineParts<T> ? ')' : ']';
  } else if constexpr (TensorMap<T>) {
    all.structure += '{';
    for_each_value(value, [&](const auto& entry) {
      all.structure += std::to_string(entry.first.size()) + ":" + entry.first;
      append_to(all, entry.second);
    });
    all.structure += '}';
  } else {
    static_assert(
        NestedTensors<T>,
        "a layer of a pipeline must return a tensor, or tuples, pairs, arrays, "
        "vectors, optionals or maps of tensors, with strings for keys");
    append_to(all, tensors_of(value));
  }
}

template <class T>
PipelineValue pipeline_value(const T& value) {
  PipelineValue all;
  append_to(all, value);
  return all;
}
inline PipelineValue pipeline_value(PipelineValue value) { return value; }

/// Reads a value with the nesting of T.
template <class T>
T read_nested(PipelineValueReader& reader) {
  if constexpr (kIs<T, std::optional>) {
    if (reader.skip_none()) return std::nullopt;
    return read_nested<typename T::value_type>(reader);
  } else if constexpr (PipelineParts<T>) {
    reader.enter_list();
    // Braces, since they are evaluated from left to right.
    T value = [&]<std::size_t... i>(std::index_sequence<i...>) {
      return T{read_nested<std::tuple_element_t<i, T>>(reader)...};
    }(std::make_index_sequence<std::tuple_size_v<T>>());
    reader.end();
    return value;
  } else if constexpr (kIs<T, std::vector>) {
    T value;
    for (reader.enter_list(); !reader.leave();)
      value.push_back(read_nested<typename T::value_type>(reader));
    return value;
  } else if constexpr (TensorMap<T>) {
    T value;
    for (reader.enter_map(); !reader.leave();) {
      std::string key = reader.key();
      value.emplace(std::move(key), reader.tensor());
    }
    return value;
  } else {
    static_assert(
        std::is_convertible_v<at::Tensor, T>,
        "a layer of a pipeline must take tensors, or tuples, pairs, arrays, "
        "vectors, optionals or maps of them, with strings for keys: give the "
        "layer a function that does");
    return reader.tensor();
  }
}

/// Builds a function's parameter from the previous layer's return value.
/// Several parameters are read like a tuple.
template <class T>
T pipeline_argument(std::string_view layer, const PipelineValue& value) {
  if constexpr (std::is_same_v<T, PipelineTensors>) {
    return value.tensors;
  } else if constexpr (std::is_same_v<T, PipelineValue>) {
    return value;
  } else {
    PipelineValueReader reader(
        layer, value, /*ignores_nesting=*/!needs_nesting<T>());
    T argument = read_nested<T>(reader);
    reader.finish();
    return argument;
  }
}

}  // namespace detail

}  // namespace accelerate
