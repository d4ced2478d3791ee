#pragma once

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace accelerate::detail {

/// From now on large blocks of this process come from the system and go back to
/// it; else glibc's heap keeps a tenth more in holes. Of other C libraries
/// nothing is changed.
inline void keep_heap_tight() {
#ifdef __GLIBC__
  constexpr int kLarge = 1 << 20;
  static const int is_set = mallopt(M_MMAP_THRESHOLD, kLarge);
  static_cast<void>(is_set);
#endif
}

}  // namespace accelerate::detail
