#include <accelerate/profiler.h>

#include <memory>
#include <utility>

#include <ATen/record_function.h>

namespace accelerate {

ProfileRange::ProfileRange(std::string_view name) {
  if (!at::hasCallbacks()) return;
  auto range =
      std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (!range->isActive()) return;
  range->before(name);
  range_ = std::move(range);
}

ProfileRange::~ProfileRange() = default;

}  // namespace accelerate
