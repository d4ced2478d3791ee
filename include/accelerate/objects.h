#pragma once

#include <concepts>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/detail/object_bytes.h>
#include <accelerate/export.h>
#include <accelerate/world.h>

namespace accelerate {

/// A value that ranks can send each other as bytes:
/// * numbers, enums, strings, paths, StateDict, and types with `dump()` and a
///   static `parse(text)`, such as nlohmann::json;
/// * structs that are trivially copyable. They are sent as their bytes, so they
///   must not hold pointers;
/// * tensors of any dtype, shape and stride. A tensor arrives contiguous and
///   without its graph: on the CPU if it was there, else on the receiving
///   rank's current device of the same kind. Meta tensors, which have a dtype
///   and a shape only, and undefined ones arrive as such. Sparse and quantized
///   tensors are rejected with ConfigError;
/// * containers, arrays, pairs, tuples, optionals and variants of the standard
///   library of such values, to any depth. Unordered containers are sent in the
///   order of their keys, which need operator<=>;
/// * types of your own, for which two functions are defined in their namespace:
///
///     std::string object_to_bytes(const Episode& episode);
///     void object_from_bytes(std::string_view bytes, Episode& episode);
///
///   They can call accelerate::object_to_bytes() and object_from_bytes() with a
///   std::tuple of the members.
///
/// An object is read into a default-constructed one. All ranks must run the
/// same build on machines of one byte order: object_from_bytes() throws
/// DistributedError for bytes of another type.
template <class T>
concept Transferable = detail::IsTransferable<T>::value;

/// Returns the lists of all ranks, concatenated in rank order, on every rank.
/// Their lengths may differ, and so may the shapes and dtypes of tensors in
/// them. Collective. A type that cannot be sent does not compile: see
/// Transferable.
template <class T>
std::vector<T> gather_object(
    const std::vector<T>& objects,
    const Group& group) {
  std::vector<T> all;
  if constexpr (detail::must_travel<T>()) {
    if (group.size() == 1) return objects;
    for (const std::string& bytes : group.all_gather_bytes(
             object_to_bytes(objects), {"gather_object()"})) {
      std::vector<T> list;
      object_from_bytes(bytes, list);
      all.insert(
          all.end(),
          std::make_move_iterator(list.begin()),
          std::make_move_iterator(list.end()));
    }
  }
  return all;
}
template <class T>
std::vector<T> gather_object(
    std::initializer_list<T> objects,
    const Group& group) {
  return gather_object(std::vector<T>(objects), group);
}
/// Does not compile: only lists can be joined.
template <class T>
std::vector<T> gather_object(const T& object, const Group& group) {
  static_assert(
      detail::kNever<T>,
      "gather_object() joins the ranks' lists: give it a std::vector, or one "
      "object in braces");
  return gather_object(std::vector<T>{object}, group);
}

/// Returns the object of rank `from_process` on every rank. The other ranks'
/// `object` is ignored; with one rank it is returned unchanged. Collective.
/// Throws ConfigError for a rank that the group does not have.
template <class T>
[[nodiscard]] T
broadcast_object(const T& object, const Group& group, int from_process = 0) {
  T result{};
  if constexpr (detail::must_travel<T>()) {
    if (group.size() == 1 && from_process == 0) return object;
    const bool is_sender = group.rank() == from_process;
    object_from_bytes(
        group.broadcast_bytes(
            is_sender ? object_to_bytes(object) : std::string(),
            from_process,
            {"broadcast_object()"}),
        result);
  }
  return result;
}
/// Accelerate's broadcast_object_list: the list of rank `from_process`, on
/// every rank. The other ranks' lists are ignored and may have other lengths.
/// For objects of different types, broadcast_object() takes a tuple.
template <class T>
[[nodiscard]] std::vector<T> broadcast_object_list(
    const std::vector<T>& objects,
    const Group& group,
    int from_process = 0) {
  return broadcast_object(objects, group, from_process);
}

}  // namespace accelerate
