// Reports that sanitizers must suppress, in every test program of a build with
// ACCELERATE_SANITIZER. Sanitizers look for functions of these names.
#define ACCELERATE_FOR_SANITIZER \
  extern "C" __attribute__((visibility("default"), used)) const char*

/// LibTorch is built without the sanitizer, which therefore cannot see its
/// locks and atomic counts: reports with a frame of LibTorch mean nothing. Our
/// code and LibTorch's change the counts of intrusive_ptr atomically; LibTorch
/// makes generators under a lock. std::regex calls std::ctype<char>::narrow(),
/// which caches its results without a lock; threads that fill the same entry
/// write the same value.
ACCELERATE_FOR_SANITIZER __tsan_default_suppressions();
const char* __tsan_default_suppressions() {
  return "race:libtorch_cpu.so\n"
         "race:libc10.so\n"
         "race:c10::intrusive_ptr\n"
         "race:at::Generator::current_seed\n"
         "race:std::ctype<char>::narrow\n";
}

/// LibTorch's calls to memcpy and similar functions are ignored: TSan does not
/// see the locks around them and reports races, and suppressing those takes ten
/// times as long as the test. An allocation that is too large returns null, as
/// without the sanitizer.
ACCELERATE_FOR_SANITIZER __tsan_default_options();
const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:allocator_may_return_null=1";
}

/// Memory that LibTorch keeps for the life of a process, and that BegunExchange
/// keeps: a message in flight whose peer may be gone is never freed.
ACCELERATE_FOR_SANITIZER __lsan_default_suppressions();
const char* __lsan_default_suppressions() {
  return "leak:libtorch_cpu.so\n"
         "leak:libc10.so\n"
         "leak:accelerate::detail::BegunExchange::State::~State\n";
}

/// An allocation that is too large fails, as without the sanitizer: tests check
/// what programs do then.
ACCELERATE_FOR_SANITIZER __asan_default_options();
const char* __asan_default_options() { return "allocator_may_return_null=1"; }
