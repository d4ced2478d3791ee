#include "big_model/tiers/input_mover.h"

#include <c10/util/ArrayRef.h>

#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

// The first watched tensor, which may be in a list; null if there is none.
const c10::IValue* first_of(
    c10::ArrayRef<c10::IValue> values,
    const void* owner) {
  for (const c10::IValue& value : values) {
    if (value.isList()) {
      if (const auto* const found = first_of(value.toListRef(), owner))
        return found;
    } else if (find_watch(value, owner) != nullptr) {
      return &value;
    }
  }
  return nullptr;
}

}  // namespace

void InputMover::call(GatedCall& call) {
  const auto arguments = call.arguments();
  const c10::IValue* const weight = first_of(
      c10::ArrayRef<c10::IValue>(arguments.data(), arguments.size()), owner_);
  if (weight != nullptr) call.move_to(weight->toTensor().device());
  call.run();
}

}  // namespace accelerate::detail
