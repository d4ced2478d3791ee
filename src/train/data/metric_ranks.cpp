#include <accelerate/accelerator.h>
#include <accelerate/metrics.h>

#include "train/session/session.h"

namespace accelerate {

Accelerator::operator MetricRanks() const {
  return {
      .group = mesh().batch_group(),
      .remainder = [session = session_]() -> std::int64_t {
        const detail::LoaderProgress* loader = session->active_loader();
        return loader != nullptr && loader->is_last_batch ? loader->remainder
                                                          : 0;
      }};
}

}  // namespace accelerate
