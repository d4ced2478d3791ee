#include "big_model/tiers/dispatch/input_mover.h"

#include <c10/util/ArrayRef.h>

#include "gate/first_of.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

void InputMover::call(GatedCall& call) {
  const auto arguments = call.arguments();
  const c10::IValue* const weight = first_of(
      c10::ArrayRef<c10::IValue>(arguments.data(), arguments.size()),
      [&](const c10::IValue& value) {
        return find_watch(value, owner_) != nullptr ? &value : nullptr;
      });
  if (weight != nullptr) call.move_to(weight->toTensor().device());
  call.run();
}

}  // namespace accelerate::detail
