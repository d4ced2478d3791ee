// Refused: define object_to_bytes\(\) and object_from_bytes\(\) in its namespace
// Names: CannotTravel<object_that_cannot_travel::Socket>
#include <map>
#include <memory>

#include <accelerate/accelerator.h>

struct Socket {
  std::shared_ptr<int> handle;
};
#ifndef MUST_FAIL
std::string object_to_bytes(const Socket&) { return {}; }
void object_from_bytes(std::string_view, Socket&) {}
#endif

void gather(
    const accelerate::Accelerator& accelerator,
    const std::vector<std::map<int, std::pair<int, Socket>>>& sockets) {
  auto all =
      accelerate::gather_object(sockets, accelerator.mesh().batch_group());
}
