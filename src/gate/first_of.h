#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace accelerate::detail {

/// Returns the first result of `find` that is not null or empty, over an
/// operator's arguments and the elements of list arguments, in order.
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
