#pragma once

#include <concepts>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/world.h>

namespace accelerate {

/// Ranks exchange objects as bytes. Supported are strings, types of plain bytes
/// (numbers, enums, structs without pointers), pairs and vectors of supported
/// types, and types with `dump()` and a static `parse(text)`, such as
/// nlohmann::json. To support your own type, define two functions in its
/// namespace:
///
///     std::string object_to_bytes(const Episode& episode);
///     void object_from_bytes(std::string_view bytes, Episode& episode);
///
/// All ranks must run the same build on machines of one byte order.
inline std::string object_to_bytes(const std::string& text) { return text; }
/// The inverse of object_to_bytes().
inline void object_from_bytes(std::string_view bytes, std::string& text) {
  text = bytes;
}

template <class T>
  requires std::is_trivially_copyable_v<T> && (!std::is_pointer_v<T>)
std::string object_to_bytes(const T& object) {
  return {reinterpret_cast<const char*>(&object), sizeof object};
}
template <class T>
  requires std::is_trivially_copyable_v<T> && (!std::is_pointer_v<T>)
void object_from_bytes(std::string_view bytes, T& object);

template <class Json>
  requires requires(const Json& json) {
    { json.dump() } -> std::convertible_to<std::string>;
    Json::parse(std::string());
  }
std::string object_to_bytes(const Json& json) {
  return json.dump();
}
template <class Json>
  requires requires(const Json& json) {
    { json.dump() } -> std::convertible_to<std::string>;
    Json::parse(std::string());
  }
void object_from_bytes(std::string_view bytes, Json& json) {
  json = Json::parse(std::string(bytes));
}

namespace detail {
/// Packs several byte strings into one, and back. `unpack_bytes` throws
/// DistributedError for bytes that pack_bytes did not make.
ACCELERATE_API std::string pack_bytes(const std::vector<std::string>& parts);
ACCELERATE_API std::vector<std::string> unpack_bytes(std::string_view bytes);
/// Throws a DistributedError: the ranks run different programs.
[[noreturn]] ACCELERATE_API void throw_wrong_size(
    std::size_t found,
    std::size_t expected);
}  // namespace detail

template <class T>
  requires std::is_trivially_copyable_v<T> && (!std::is_pointer_v<T>)
void object_from_bytes(std::string_view bytes, T& object) {
  if (bytes.size() != sizeof object)
    detail::throw_wrong_size(bytes.size(), sizeof object);
  std::memcpy(&object, bytes.data(), sizeof object);
}

template <class A, class B>
  requires(!std::is_trivially_copyable_v<std::pair<A, B>>)
std::string object_to_bytes(const std::pair<A, B>& pair);
template <class A, class B>
  requires(!std::is_trivially_copyable_v<std::pair<A, B>>)
void object_from_bytes(std::string_view bytes, std::pair<A, B>& pair);
template <class T>
std::string object_to_bytes(const std::vector<T>& list);
template <class T>
void object_from_bytes(std::string_view bytes, std::vector<T>& list);

template <class A, class B>
  requires(!std::is_trivially_copyable_v<std::pair<A, B>>)
std::string object_to_bytes(const std::pair<A, B>& pair) {
  return detail::pack_bytes(
      {object_to_bytes(pair.first), object_to_bytes(pair.second)});
}
template <class A, class B>
  requires(!std::is_trivially_copyable_v<std::pair<A, B>>)
void object_from_bytes(std::string_view bytes, std::pair<A, B>& pair) {
  const std::vector<std::string> parts = detail::unpack_bytes(bytes);
  if (parts.size() != 2) detail::throw_wrong_size(parts.size(), 2);
  object_from_bytes(parts[0], pair.first);
  object_from_bytes(parts[1], pair.second);
}
template <class T>
std::string object_to_bytes(const std::vector<T>& list) {
  std::vector<std::string> parts;
  for (const T& item : list) parts.push_back(object_to_bytes(item));
  return detail::pack_bytes(parts);
}
template <class T>
void object_from_bytes(std::string_view bytes, std::vector<T>& list) {
  list.clear();
  for (const std::string& part : detail::unpack_bytes(bytes)) {
    T item{};
    object_from_bytes(part, item);
    list.push_back(std::move(item));
  }
}

/// A value that can be sent as bytes.
template <class T>
concept Transferable =
    std::is_default_constructible_v<T> && requires(const T& object, T& target) {
      { object_to_bytes(object) } -> std::convertible_to<std::string>;
      object_from_bytes(std::string_view(), target);
    };

/// The lists of all ranks, joined in rank order, on every rank. Their lengths
/// may differ.
template <Transferable T>
std::vector<T> gather_object(
    const std::vector<T>& objects,
    const Group& group) {
  if (group.size() == 1) return objects;
  std::vector<T> all;
  for (const std::string& bytes :
       group.all_gather_bytes(object_to_bytes(objects))) {
    std::vector<T> list;
    object_from_bytes(bytes, list);
    for (T& object : list) all.push_back(std::move(object));
  }
  return all;
}

/// The object of rank `from_process`. The other ranks' `object` is ignored.
template <Transferable T>
T broadcast_object(const T& object, const Group& group, int from_process = 0) {
  if (group.size() == 1) return object;
  T result{};
  object_from_bytes(
      group.broadcast_bytes(
          group.rank() == from_process ? object_to_bytes(object)
                                       : std::string(),
          from_process),
      result);
  return result;
}

}  // namespace accelerate
