// Refused: a plain value needs a name: register_for_checkpointing
#include <accelerate/accelerator.h>

struct Epoch {
  [[nodiscard]] accelerate::StateDict state_dict() const { return {}; }
  void load_state_dict(const accelerate::StateDict&) {}
};

void keep(
    const accelerate::Accelerator& accelerator,
    int& number,
    Epoch& epoch) {
#ifdef MUST_FAIL
  accelerator.register_for_checkpointing(number);
#else
  static_cast<void>(number);
  accelerator.register_for_checkpointing(epoch);
#endif
}
