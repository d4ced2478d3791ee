#pragma once

#include <array>
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
  PipelineValueReader(std::string_view layer, const PipelineValue& value)
      : layer_(layer), value_(value) {}

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
  std::size_t place_ = 0;
  std::size_t num_tensors_ = 0;
};

/// These stand for the name of a layer in messages.
inline constexpr std::string_view kLossFunction = "the loss function";
inline constexpr std::string_view kOutputsAs = "outputs_as()";

[[noreturn]] ACCELERATE_API void throw_layer_arguments(
    std::string_view layer,
    std::size_t taken,
    std::size_t given);

template <class T>
inline constexpr bool kIsTensorMap = false;
template <class C, class A>
inline constexpr bool kIsTensorMap<std::map<std::string, at::Tensor, C, A>> =
    true;
template <class H, class E, class A>
inline constexpr bool
    kIsTensorMap<std::unordered_map<std::string, at::Tensor, H, E, A>> = true;

template <class T>
struct PipelineParts : std::false_type {};  // not a tuple, pair or array
template <class... Ts>
struct PipelineParts<std::tuple<Ts...>> : std::true_type {};
template <class A, class B>
struct PipelineParts<std::pair<A, B>> : std::true_type {};
template <class T, std::size_t n>
struct PipelineParts<std::array<T, n>> : std::true_type {};

template <class T>
struct PipelineItem {};  // neither an optional nor a vector
template <class T>
struct PipelineItem<std::optional<T>> {
  using Optional = T;
};
template <class T, class A>
struct PipelineItem<std::vector<T, A>> {
  using Vector = T;
};
template <class T>
concept PipelineOptional = requires { typename PipelineItem<T>::Optional; };
template <class T>
concept PipelineVector = requires { typename PipelineItem<T>::Vector; };

// Whether a value of this type can only be built from one with the same
// nesting. For other types, only the number of tensors counts.
template <class T>
struct NeedsStructure : std::bool_constant<kIsTensorMap<T>> {};
template <class... Ts>
struct NeedsStructure<std::tuple<Ts...>>
    : std::disjunction<NeedsStructure<Ts>...> {};
template <class A, class B>
struct NeedsStructure<std::pair<A, B>>
    : std::disjunction<NeedsStructure<A>, NeedsStructure<B>> {};
template <class T, std::size_t n>
struct NeedsStructure<std::array<T, n>> : NeedsStructure<T> {};
template <class T>
struct NeedsStructure<std::optional<T>>
    : std::negation<std::is_same<T, at::Tensor>> {};
template <class T, class A>
struct NeedsStructure<std::vector<T, A>> : std::true_type {};

/// Appends a value of any type that visit_tensors accepts.
template <class T>
void append_to(PipelineValue& all, const T& value) {
  if constexpr (std::is_convertible_v<T, at::Tensor>) {
    all.tensors.push_back(value);
    all.structure += 't';
  } else if constexpr (PipelineOptional<T>) {
    if (value) return append_to(all, *value);
    all.tensors.emplace_back();
    all.structure += 'n';
  } else if constexpr (PipelineParts<T>::value) {
    all.structure += '(';
    std::apply(
        [&](const auto&... parts) { (append_to(all, parts), ...); }, value);
    all.structure += ')';
  } else if constexpr (PipelineVector<T>) {
    all.structure += '[';
    for (const auto& item : value) append_to(all, item);
    all.structure += ']';
  } else if constexpr (kIsTensorMap<T>) {
    all.structure += '{';
    for (const auto* entry : entries_by_key(value)) {
      all.structure += std::to_string(entry->first.size()) + ":" + entry->first;
      append_to(all, entry->second);
    }
    all.structure += '}';
  } else {
    static_assert(
        NestedTensors<T>,
        "a layer of a pipeline returns a tensor, or tuples, pairs, arrays, "
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
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return reader.tensor();
  } else if constexpr (PipelineOptional<T>) {
    if (reader.skip_none()) return std::nullopt;
    return read_nested<typename PipelineItem<T>::Optional>(reader);
  } else if constexpr (PipelineParts<T>::value) {
    reader.enter_list();
    // Braces, since they are evaluated from left to right.
    T value = [&]<std::size_t... i>(std::index_sequence<i...>) {
      return T{read_nested<std::tuple_element_t<i, T>>(reader)...};
    }(std::make_index_sequence<std::tuple_size_v<T>>());
    reader.end();
    return value;
  } else if constexpr (PipelineVector<T>) {
    T value;
    for (reader.enter_list(); !reader.leave();)
      value.push_back(read_nested<typename PipelineItem<T>::Vector>(reader));
    return value;
  } else {
    static_assert(
        kIsTensorMap<T>,
        "a layer of a pipeline takes tensors, or tuples, pairs, arrays, "
        "vectors, optionals or maps of them, with strings for keys: give the "
        "layer a function that does");
    T value;
    for (reader.enter_map(); !reader.leave();) {
      std::string key = reader.key();
      value.emplace(std::move(key), reader.tensor());
    }
    return value;
  }
}

/// Takes tensors one after another, however they were nested.
class PipelineTensorSource {
 public:
  explicit PipelineTensorSource(const PipelineTensors& tensors)
      : tensors_(tensors) {}

  template <class T>
  T take() {
    if constexpr (PipelineOptional<T>) {
      const at::Tensor& tensor = tensors_[next_++];
      return tensor.defined() ? T(tensor) : T();
    } else if constexpr (PipelineParts<T>::value) {
      return [&]<std::size_t... i>(std::index_sequence<i...>) {
        return T{take<std::tuple_element_t<i, T>>()...};
      }(std::make_index_sequence<std::tuple_size_v<T>>());
    } else {
      static_assert(
          std::is_convertible_v<at::Tensor, T>,
          "a layer of a pipeline takes tensors, or tuples, pairs, arrays, "
          "vectors, optionals or maps of them, with strings for keys: give "
          "the layer a function that does");
      return at::Tensor(tensors_[next_++]);
    }
  }

 private:
  const PipelineTensors& tensors_;
  std::size_t next_ = 0;
};

template <class T>
constexpr std::size_t num_tensors_in() {
  if constexpr (PipelineParts<T>::value) {
    return []<std::size_t... i>(std::index_sequence<i...>) {
      return (
          std::size_t{0} + ... + num_tensors_in<std::tuple_element_t<i, T>>());
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return 1;
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
  } else if constexpr (NeedsStructure<T>::value) {
    PipelineValueReader reader(layer, value);
    T argument = read_nested<T>(reader);
    reader.finish();
    return argument;
  } else {
    constexpr std::size_t count = num_tensors_in<T>();
    if (value.tensors.size() != count)
      throw_layer_arguments(layer, count, value.tensors.size());
    return PipelineTensorSource(value.tensors).take<T>();
  }
}

}  // namespace detail

}  // namespace accelerate
