#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/object_bytes.h>
#include <accelerate/detail/standard_types.h>
#include <accelerate/export.h>
#include <accelerate/visit_tensors.h>

/// Everything in a nested value, with types erased, so that its lists can be
/// cut, joined and sent like its tensors.
namespace accelerate {

namespace detail {

/// What can be done with a list or a value of one type. There is one object per
/// type, so that addresses tell types apart.
struct LeafOperations {
  /// Null for types that cannot be sent.
  std::string (*to_bytes)(const void* leaf) = nullptr;
  void (*from_bytes)(std::string_view bytes, void* leaf) = nullptr;
  /// A value, for messages. Null for lists.
  std::string (*text)(const void* value) = nullptr;
  /// Null for values.
  std::int64_t (*size)(const void* list) = nullptr;
  void (*resize)(void* list, std::int64_t size) = nullptr;
  /// Removes the first items.
  void (*drop_first)(void* list, std::int64_t num_items) = nullptr;
  void (*append)(void* list, const void* other) = nullptr;
  /// An empty list.
  std::shared_ptr<void> (*make)() = nullptr;
};

/// A number with all its digits; a string in quotes, shortened.
ACCELERATE_API std::string text_of(double number);
ACCELERATE_API std::string text_of(std::int64_t number);
ACCELERATE_API std::string text_of(std::uint64_t number);
ACCELERATE_API std::string text_of(std::string_view string);

template <class T>
constexpr LeafOperations sendable_leaf() {
  LeafOperations made = {};
  if constexpr (IsTransferable<T>::value) {
    made.to_bytes = [](const void* leaf) {
      return object_to_bytes(*static_cast<const T*>(leaf));
    };
    made.from_bytes = [](std::string_view bytes, void* leaf) {
      object_from_bytes(bytes, *static_cast<T*>(leaf));
    };
  }
  return made;
}
template <class List>
constexpr LeafOperations list_operations() {
  LeafOperations made = sendable_leaf<List>();
  made.make = []() -> std::shared_ptr<void> {
    return std::make_shared<List>();
  };
  made.size = [](const void* list) {
    return static_cast<std::int64_t>(static_cast<const List*>(list)->size());
  };
  made.resize = [](void* list, std::int64_t size) {
    static_cast<List*>(list)->resize(static_cast<std::size_t>(size));
  };
  made.drop_first = [](void* list, std::int64_t num_items) {
    auto& items = *static_cast<List*>(list);
    items.erase(items.begin(), items.begin() + num_items);
  };
  made.append = [](void* list, const void* other) {
    auto& items = *static_cast<List*>(list);
    const auto& more = *static_cast<const List*>(other);
    items.insert(items.end(), more.begin(), more.end());
  };
  return made;
}
template <class Value>
constexpr LeafOperations value_operations() {
  LeafOperations made = sendable_leaf<Value>();
  made.text = [](const void* value) {
    using Wide = std::conditional_t<
        std::is_floating_point_v<Value>,
        double,
        std::conditional_t<
            std::is_unsigned_v<Value>,
            std::uint64_t,
            std::conditional_t<
                std::is_integral_v<Value>,
                std::int64_t,
                std::string_view>>>;
    return text_of(static_cast<Wide>(*static_cast<const Value*>(value)));
  };
  return made;
}
template <class List>
inline constexpr LeafOperations kListOperations = list_operations<List>();
template <class Value>
inline constexpr LeafOperations kValueOperations = value_operations<Value>();

/// A list without tensors, or a number or string outside of lists.
struct NestedLeaf {
  std::string place;
  void* object;
  const LeafOperations* operations;
};

/// Pointers to what is in a nested value, in the order in which it is visited.
struct NestedParts {
  std::vector<at::Tensor*> tensors = {};
  /// Where each tensor is: `[1]["labels"]`.
  std::vector<std::string> places = {};
  std::vector<NestedLeaf> lists = {};
  std::vector<NestedLeaf> values = {};
  /// For each vector, map, optional and variant with tensors: its size, keys or
  /// alternative.
  std::vector<std::string> structure = {};
  bool has_keys = false;
  /// Place of a user's type with members that its visit_tensors leaves out, and
  /// how many bytes they take.
  std::string unvisited_place = {};
  std::size_t num_unvisited_bytes = 0;
};

template <class T>
std::string size_or_keys(const T& container) {
  if constexpr (kIs<T, std::optional>) {
    return object_to_bytes(container.has_value());
  } else if constexpr (kIs<T, std::variant>) {
    return object_to_bytes(container.index());
  } else if constexpr (MapContainer<T>) {
    static_assert(
        IsTransferable<typename T::key_type>::value,
        "the keys of a map with tensors are compared and sent: define "
        "object_to_bytes() and object_from_bytes() for their type "
        "(accelerate/objects.h)");
    std::vector<std::string> keys;
    for_each_value(container, [&](const auto& entry) {
      keys.push_back(object_to_bytes(entry.first));
    });
    return pack_bytes(keys);
  } else {
    return object_to_bytes(container.size());
  }
}

/// Makes an empty container have the size, keys or alternative that
/// size_or_keys() wrote.
template <class T>
void restore_size(std::string_view bytes, T& container) {
  if constexpr (MapContainer<T>) {
    container.clear();
    for (const std::string& part : unpack_bytes(bytes)) {
      typename T::key_type key{};
      object_from_bytes(part, key);
      container.try_emplace(std::move(key));
    }
  } else if constexpr (kIs<T, std::optional>) {
    bool has_value = false;
    object_from_bytes(bytes, has_value);
    if (has_value) container.emplace();
  } else {
    std::size_t size_or_index = 0;
    object_from_bytes(bytes, size_or_index);
    if constexpr (kIs<T, std::variant>) {
      require_alternative(size_or_index, std::variant_size_v<T>);
      emplace_alternative(container, size_or_index);
    } else {
      container.resize(size_or_index);
    }
  }
}

}  // namespace detail

/// The visitor of detail::parts_of().
class ACCELERATE_API PartsVisitor {
 public:
  void operator()(at::Tensor& tensor);
  template <class List>
  void visit_list(List& list) {
    note(&list, sizeof list);
    add_list(&list, detail::kListOperations<List>);
  }
  template <class Value>
  void visit_value(Value& value) {
    note(&value, sizeof value);
    add_value(&value, detail::kValueOperations<Value>);
  }
  template <class Container>
  void visit_structure(const Container& container) {
    note(&container, sizeof container);
    parts_.structure.push_back(detail::size_or_keys(container));
  }
  template <class Key>
  void enter_place(const Key& key) {
    if constexpr (std::is_convertible_v<const Key&, std::string_view>) {
      enter(std::string_view(key));
    } else if constexpr (std::is_arithmetic_v<Key>) {
      enter(static_cast<std::int64_t>(key));
    } else {
      enter("...", /*is_key=*/false);
    }
  }
  template <class Element>
  void leave_place(const Element& element) {
    find_unvisited(element, entered_.back().second);
    leave();
  }
  /// Call it after all of `object` was visited; `num_visited` is the number of
  /// objects that were visited before it.
  template <class T>
  void find_unvisited(const T& object, std::size_t num_visited = 0) {
    // A gap of less than the alignment may be padding between members.
    if constexpr (detail::kHasOwnVisit<T> && !std::is_polymorphic_v<T>)
      find_gap(&object, sizeof object, alignof(T), num_visited);
  }
  [[nodiscard]] detail::NestedParts take();

 private:
  void note(const void* object, std::size_t size);
  void add_list(void* list, const detail::LeafOperations& operations);
  void add_value(void* value, const detail::LeafOperations& operations);
  void enter(std::int64_t index);
  void enter(std::string_view key, bool is_key = true);
  void leave();
  void find_gap(
      const void* object,
      std::size_t size,
      std::size_t alignment,
      std::size_t num_visited);

  detail::NestedParts parts_;
  std::string place_;
  /// Length of the place, and number of objects visited, before each element
  /// that is being visited.
  std::vector<std::pair<std::size_t, std::size_t>> entered_;
  std::vector<std::pair<const void*, std::size_t>> visited_;
};

/// Gives containers with tensors the sizes and keys in NestedParts::structure.
class ACCELERATE_API StructureReader {
 public:
  explicit StructureReader(std::span<const std::string> structure)
      : structure_(structure) {}

  void operator()(at::Tensor&) const {}
  template <class List>
  void visit_list(List&) const {}
  template <class Container>
  void visit_structure(Container& container) {
    detail::restore_size(next(), container);
  }

 private:
  const std::string& next();

  std::span<const std::string> structure_;
  std::size_t next_ = 0;
};

namespace detail {

/// Points into `value`, which must outlive the result and keep its structure.
template <class T>
NestedParts parts_of(T& value) {
  PartsVisitor visitor;
  visit_tensors(value, visitor);
  visitor.find_unvisited(value);
  return visitor.take();
}

/// Size of dimension 0 of the first tensor that has one; without such a tensor,
/// of the first list.
ACCELERATE_API std::optional<std::int64_t> rows_of(const NestedParts& parts);

/// Throws ConfigError, naming the place, unless every list (and, with
/// `checks_tensors`, every tensor) has `rows` rows. `function` is the subject
/// of the message.
ACCELERATE_API void require_rows(
    std::string_view function,
    const NestedParts& parts,
    std::int64_t rows,
    bool checks_tensors);
/// Rows [begin, end) of each tensor and list, counted from the end if negative,
/// and clamped.
ACCELERATE_API void
cut_rows(const NestedParts& parts, std::int64_t begin, std::int64_t end);

struct JoinPartsOptions {
  std::int64_t dim = 0;
  /// Keep the first value's numbers and strings even where the others differ.
  bool keeps_first_values = false;
};
/// Makes the first value the concatenation of all. Throws ConfigError for
/// nothing, for values of different structure, and for lists and values that
/// cannot be joined.
ACCELERATE_API void join_parts(
    const std::vector<NestedParts>& all,
    const JoinPartsOptions& options);
/// Throws ConfigError beginning with `subject` unless all have the structure,
/// numbers and strings of the first, and, with `compares_lists`, its lists.
/// `advice` says what to do.
ACCELERATE_API void require_same_parts(
    const std::vector<NestedParts>& all,
    bool compares_lists,
    std::string_view subject,
    std::string_view advice);

/// Convert lists and values to one string, and back into a value of the same
/// structure. The latter throws DistributedError if their number differs.
ACCELERATE_API std::string leaves_to_bytes(const NestedParts& parts);
ACCELERATE_API void leaves_from_bytes(
    std::string_view bytes,
    const NestedParts& parts);

}  // namespace detail
}  // namespace accelerate
