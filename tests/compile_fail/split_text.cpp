// Refused: split_between_processes\(\) splits a std::vector, a tensor, or a map
#include <accelerate/accelerator.h>

void split(
    const accelerate::Accelerator& accelerator,
    const std::string& text,
    const std::vector<std::string>& lines) {
#ifdef MUST_FAIL
  static_cast<void>(lines);
  auto mine = accelerator.split_between_processes(text);
#else
  static_cast<void>(text);
  auto mine = accelerator.split_between_processes(lines);
#endif
}
