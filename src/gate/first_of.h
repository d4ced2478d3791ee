#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace accelerate::detail {

/// The first result of `find` that is not null or empty, for an operator's
/// arguments and the elements of those that are lists, in order.
template <class Find>
auto first_of(c10::ArrayRef<c10::IValue> values, const Find& find)
    -> decltype(find(values.front())) {
  for (const c10::IValue& value : values) {
    if (auto found =
            value.isList() ? first_of(value.toListRef(), find) : find(value))
      return found;
  }
  return {};
}

}  // namespace accelerate::detail
