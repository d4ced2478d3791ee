#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <accelerate/detail/loader_engine.h>

namespace accelerate {

/// One pass over a loader. A pass survives moving the loader; once the loader
/// is gone, and beyond the last batch, it throws ConfigError. Leaving the loop
/// early ends the pass.
template <class Batch>
class BatchIterator {
 public:
  BatchIterator(
      std::weak_ptr<detail::LoaderEngine> loader,
      std::int64_t num_skipped)
      : pass_(std::move(loader), num_skipped) {}

  /// The batch may be changed and moved from.
  Batch& operator*() { return *static_cast<Batch*>(pass_.batch().value()); }
  Batch* operator->() { return &**this; }
  BatchIterator& operator++() {
    pass_.advance();
    return *this;
  }
  bool operator==(detail::EndOfPass) const { return !pass_.has_batch(); }

 private:
  detail::LoaderPass pass_;
};

}  // namespace accelerate
