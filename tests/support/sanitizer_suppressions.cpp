// What sanitizers must not hold against us, in every test program of a build with
// ACCELERATE_SANITIZER. They look for functions of these names.
#define ACCELERATE_FOR_SANITIZER \
  extern "C" __attribute__((visibility("default"), used)) const char*

/// LibTorch is built without the sanitizer, so that it cannot see LibTorch's locks
/// and atomic counts: whatever has a frame of LibTorch in it is unknown. Counts of
/// intrusive_ptr are changed by our code and LibTorch's, by atomic operations;
/// generators are made under a lock of LibTorch's. std::regex calls std::ctype<char>::narrow(),
/// which caches its results without a lock; threads that fill the same entry write
/// the same value.
ACCELERATE_FOR_SANITIZER __tsan_default_suppressions();
const char* __tsan_default_suppressions() {
  return "race:libtorch_cpu.so\n"
         "race:libc10.so\n"
         "race:c10::intrusive_ptr\n"
         "race:at::Generator::current_seed\n"
         "race:std::ctype<char>::narrow\n";
}

/// LibTorch's calls of memcpy and its kin are ignored: TSan does not see the locks
/// around them and reports races, and suppressing these takes ten times as long as
/// the test. An allocation that is too large returns null, as without the sanitizer.
ACCELERATE_FOR_SANITIZER __tsan_default_options();
const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:allocator_may_return_null=1";
}

/// What LibTorch keeps for the life of a process, and what P2PBatch keeps: a
/// message in flight whose peer may be gone is never freed.
ACCELERATE_FOR_SANITIZER __lsan_default_suppressions();
const char* __lsan_default_suppressions() {
  return "leak:libtorch_cpu.so\n"
         "leak:libc10.so\n"
         "leak:accelerate::detail::P2PBatch::~P2PBatch\n";
}

/// An allocation that is too large fails, as without the sanitizer: tests look at
/// what programs do then.
ACCELERATE_FOR_SANITIZER __asan_default_options();
const char* __asan_default_options() { return "allocator_may_return_null=1"; }
