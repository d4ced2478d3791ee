#include "base/machine/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>
#include <vector>

#include "base/text/encoding.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// This number at the beginning of the segment proves that the file opened
// through a process id is the intended segment.
constexpr std::size_t kNonceBytes = SharedSegment::kReservedBytes;

std::string nonce_of(const std::byte* data) {
  return hexadecimal({reinterpret_cast<const char*>(data), kNonceBytes});
}

std::string system_error() { return std::strerror(errno); }

// Returns an error number, or 0. Above the limit of a file's size, the kernel
// also sends this thread a signal, which would end the program.
int set_size(int descriptor, std::size_t bytes) {
  sigset_t signal, before, pending;
  sigemptyset(&signal);
  sigaddset(&signal, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &signal, &before);
  ::sigpending(&pending);
  const int problem =
      ::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  const timespec no_time{};
  if (problem == EFBIG && sigismember(&pending, SIGXFSZ) == 0)
    ::sigtimedwait(&signal, nullptr, &no_time);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return problem;
}

[[noreturn]] void refuse(const std::string& reason) {
  throw SegmentError(
      format("[comm] the ranks cannot share memory: {}", reason));
}

}  // namespace

SharedSegment::SharedSegment(int descriptor, std::size_t bytes)
    : descriptor_(descriptor), size_(bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    const std::string reason = system_error();
    ::close(descriptor);
    refuse(format("mapping {} bytes failed: {}", bytes, reason));
  }
  data_ = static_cast<std::byte*>(memory);
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : is_borrowed_(other.is_borrowed_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_) {}

SharedSegment::~SharedSegment() {
  close_ticket();
  if (data_ != nullptr && !is_borrowed_) ::munmap(data_, size_);
}

SharedSegment SharedSegment::borrow(std::byte* memory, std::size_t bytes) {
  SharedSegment segment;
  segment.is_borrowed_ = true;
  segment.data_ = memory;
  segment.size_ = bytes;
  return segment;
}

std::string SharedSegment::machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  return text;
}

SharedSegment SharedSegment::create(std::size_t bytes, const char* name) {
  const int descriptor = ::memfd_create(name, MFD_CLOEXEC);
  if (descriptor < 0) refuse("memfd_create failed: " + system_error());
  if (const int problem = set_size(descriptor, bytes)) {
    ::close(descriptor);
    refuse(format(
        "{} bytes were refused: {}{}",
        bytes,
        std::strerror(problem),
        problem == EFBIG ? " (\"ulimit -f\" limits shared memory as well)"
                         : ""));
  }
  SharedSegment segment(descriptor, bytes);
  if (::getrandom(segment.data_, kNonceBytes, 0) !=
      static_cast<ssize_t>(kNonceBytes)) {
    refuse("getrandom failed: " + system_error());
  }
  return segment;
}

std::string SharedSegment::ticket() const {
  return format(
      "{} {} {} {} {}",
      machine(),
      ::getpid(),
      descriptor_,
      size_,
      nonce_of(data_));
}

void SharedSegment::close_ticket() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

SharedSegment SharedSegment::open(const std::string& ticket) {
  const std::vector<std::string> fields = split(ticket, ' ');
  if (fields.size() != 5) refuse(format("\"{}\" names no segment", ticket));
  if (fields[0] != machine()) refuse("the ranks are on different machines");
  const std::string path = format("/proc/{}/fd/{}", fields[1], fields[2]);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) {
    refuse(format(
        "opening that of process {} failed ({}); do the ranks run in different "
        "containers, or as different users?",
        fields[1],
        system_error()));
  }
  struct stat status {};
  const auto size = parse_int(fields[3]).value_or(0);
  if (size <= 0 || ::fstat(descriptor, &status) != 0 ||
      status.st_size != static_cast<off_t>(size)) {
    ::close(descriptor);
    refuse(format("process {} is another container's", fields[1]));
  }
  SharedSegment segment(descriptor, static_cast<std::size_t>(size));
  if (nonce_of(segment.data_) != fields[4])
    refuse(format("process {} is another container's", fields[1]));
  segment.close_ticket();
  return segment;
}

SharedSegment SharedSegment::open_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0)
    refuse(format("opening {} failed: {}", path, system_error()));
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 ||
      status.st_size <= static_cast<off_t>(kReservedBytes)) {
    ::close(descriptor);
    refuse(format("{} is not a segment", path));
  }
  SharedSegment segment(descriptor, static_cast<std::size_t>(status.st_size));
  segment.close_ticket();
  return segment;
}

}  // namespace accelerate::detail
