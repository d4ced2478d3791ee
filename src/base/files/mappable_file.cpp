#include "base/files/mappable_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/files/page_cache.h"

namespace accelerate::detail {

namespace {

// A huge page. Bytes are copied and populated in pieces of this size.
constexpr std::size_t kPiece = std::size_t{2} << 20U;
// When the kernel maps a page, it maps everything cached in a window of this
// size around it, so touching one page per window is enough. Asking for every
// page makes it walk through all of them, which takes four times as long.
constexpr std::size_t kWindow = std::size_t{64} << 10U;
// Time between checks for other processes that wait for a file. The kernel
// gives lease holders 45 seconds.
constexpr std::chrono::milliseconds kInterval(50);
// Added per file, so that thousands of files take little processor time.
constexpr std::chrono::microseconds kIntervalPerFile(40);

// Replaces mapped pages with copies, piece by piece. Readers on other threads
// see either the page or its copy.
bool replace_by_copies(void* begin, std::size_t size) {
  for (std::size_t done = 0; done < size; done += kPiece) {
    const std::size_t piece = std::min(kPiece, size - done);
    void* const from = static_cast<std::byte*>(begin) + done;
    void* const copy = ::mmap(
        nullptr,
        piece,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
        0);
    if (copy == MAP_FAILED) return false;
    std::memcpy(copy, from, piece);
    if (::mremap(copy, piece, piece, MREMAP_MAYMOVE | MREMAP_FIXED, from) ==
        MAP_FAILED) {
      ::munmap(copy, piece);
      return false;
    }
  }
  return true;
}

bool populate_all(std::byte* begin, std::size_t size) {
  return ::madvise(begin, size, MADV_POPULATE_READ) == 0;
}

// Maps the pages of a piece that are in the page cache.
bool populate_windows(std::byte* begin, std::size_t size) {
  for (std::size_t at = 0; at < size;) {
    if (!populate_all(begin + at, 1)) return false;
    // Windows begin at multiples of their size.
    at += kWindow - reinterpret_cast<std::uintptr_t>(begin + at) % kWindow;
  }
  return true;
}

/// Reports which pages of this process are mapped.
class PageTable {
 public:
  PageTable() : file_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;
  ~PageTable() {
    if (file_ >= 0) ::close(file_);
  }

  // False if it cannot be determined.
  [[nodiscard]] bool is_mapped(const std::byte* address) const {
    constexpr std::uint64_t kIsPresent = std::uint64_t{1} << 63U;
    std::uint64_t entry = 0;
    const auto place = static_cast<off_t>(
        reinterpret_cast<std::uintptr_t>(address) / page_bytes() *
        sizeof(entry));
    return file_ >= 0 &&
        ::pread(file_, &entry, sizeof(entry), place) == sizeof(entry) &&
        (entry & kIsPresent) != 0;
  }

 private:
  int file_;
};

// Reads the pages of a piece that are not in the page cache.
bool populate_absent(std::byte* begin, std::size_t size) {
  const std::size_t num_pages = (size + page_bytes() - 1) / page_bytes();
  std::vector<unsigned char> is_present(num_pages);
  if (::mincore(begin, size, is_present.data()) != 0)
    return populate_all(begin, size);
  for (std::size_t page = 0; page < num_pages; ++page) {
    if ((is_present[page] & 1U) != 0) continue;
    if (!populate_all(begin + page * page_bytes(), 1)) return false;
  }
  return true;
}

// If the page cache has a huge page, touching its first page maps all of it,
// and then the last one is mapped as well.
bool populate_piece(
    std::byte* begin,
    std::size_t size,
    const PageTable& page_table) {
  if (!populate_all(begin, 1)) return false;
  const bool is_huge = size > kWindow && page_table.is_mapped(begin + size - 1);
  return (is_huge || populate_windows(begin, size)) &&
      populate_absent(begin, size);
}

}  // namespace

/// The state shared by a MappableFile and its mapped bytes.
struct MappedBytes::File {
  explicit File(int opened) : descriptor(opened) {}

  // Whether the kernel still keeps the promise.
  [[nodiscard]] bool has_lease() const {
    return is_leased && ::fcntl(descriptor, F_GETLEASE) == F_RDLCK;
  }

  // Called when another process waits for the file, and at the end.
  void give_up() {
    const std::lock_guard lock(mutex);
    if (!is_leased) return;
    bool all = true;
    for (MappedBytes* const bytes : mapped) {
      if (bytes->begin_ == nullptr) continue;
      all = replace_by_copies(bytes->begin_, bytes->size_) && all;
    }
    // If memory for copies runs out, the other processes have to wait until the
    // kernel breaks the lease.
    if (!all) return;
    ::fcntl(descriptor, F_SETLEASE, F_UNLCK);
    is_leased = false;
  }

  std::mutex mutex;
  int descriptor;
  bool is_leased = false;
  bool is_watched = false;
  std::uint64_t promise = 0;
  /// The mapped bytes that are still pages of the file.
  std::vector<MappedBytes*> mapped;
};

namespace {

/// The thread that copies pages when another process waits for a file. A
/// process has at most one, which is never joined and owns nothing that is
/// destroyed.
class LeaseWatcher {
 public:
  static LeaseWatcher& instance() {
    static auto* const watcher = new LeaseWatcher();
    return *watcher;
  }

  [[nodiscard]] pid_t thread() {
    std::unique_lock lock(mutex_);
    started_.wait(lock, [this] { return thread_ != 0; });
    return thread_;
  }

  void add(std::weak_ptr<void> owner, std::function<void()> look) {
    const std::lock_guard lock(mutex_);
    watched_.push_back({std::move(owner), std::move(look)});
    added_.notify_one();
  }

 private:
  struct Watched {
    std::weak_ptr<void> owner;
    std::function<void()> look;
  };

  LeaseWatcher() {
    // This thread must not take the program's signals; it inherits the mask.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { run(); }).detach();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run() {
    std::unique_lock lock(mutex_);
    thread_ = static_cast<pid_t>(::syscall(SYS_gettid));
    started_.notify_all();
    while (true) {
      added_.wait(lock, [this] { return !watched_.empty(); });
      const std::vector<Watched> now = watched_;
      lock.unlock();
      for (const Watched& each : now)
        if (const auto owner = each.owner.lock()) each.look();
      lock.lock();
      std::erase_if(
          watched_, [](const Watched& each) { return each.owner.expired(); });
      lock.unlock();
      std::this_thread::sleep_for(
          kInterval + static_cast<int>(now.size()) * kIntervalPerFile);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable started_;
  std::condition_variable added_;
  pid_t thread_ = 0;
  std::vector<Watched> watched_;
};

}  // namespace

MappedBytes::~MappedBytes() {
  const std::lock_guard lock(file_->mutex);
  std::erase(file_->mapped, this);
  if (begin_ != nullptr) ::munmap(begin_, size_);
}

bool MappedBytes::populate(const ForEach& for_each) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data_);
  std::byte* const begin = data_ - address % page_bytes();
  std::byte* const end = data_ + num_bytes_;
  // The first piece begins at a multiple of its size, as huge pages do.
  std::byte* const first = data_ - address % kPiece;
  const auto num_pieces =
      (static_cast<std::size_t>(end - first) + kPiece - 1) / kPiece;
  const PageTable page_table;
  std::atomic<bool> is_done = true;
  const auto populate_one = [&](std::size_t i) {
    std::byte* const from = std::max(begin, first + i * kPiece);
    std::byte* const to = std::min(end, first + (i + 1) * kPiece);
    if (!populate_piece(from, static_cast<std::size_t>(to - from), page_table))
      is_done = false;
  };
  if (for_each) {
    for_each(num_pieces, populate_one);
  } else {
    for (std::size_t i = 0; i < num_pieces; ++i) populate_one(i);
  }
  return is_done;
}

MappableFile::MappableFile(int descriptor)
    : file_(std::make_shared<MappedBytes::File>(descriptor)) {}

MappableFile::~MappableFile() {
  // Bytes that outlive this object are copies from now on.
  file_->give_up();
}

std::uint64_t MappableFile::protect() const {
  MappedBytes::File& file = *file_;
  const std::lock_guard lock(file.mutex);
  if (file.is_leased) return file.has_lease() ? file.promise : 0;
  // The kernel's signal that another process is waiting is ignored by default;
  // once the owner is set below, it goes to a thread that blocks it.
  LeaseWatcher& watcher = LeaseWatcher::instance();
  if (::fcntl(file.descriptor, F_SETSIG, SIGURG) != 0 ||
      ::fcntl(file.descriptor, F_SETLEASE, F_RDLCK) != 0) {
    return 0;
  }
  const f_owner_ex owner{F_OWNER_TID, watcher.thread()};
  ::fcntl(file.descriptor, F_SETOWN_EX, &owner);
  file.is_leased = true;
  if (!file.is_watched) {
    MappedBytes::File* const address = file_.get();
    watcher.add(file_, [address] {
      bool is_wanted = false;
      {
        const std::lock_guard held(address->mutex);
        is_wanted = address->is_leased && !address->has_lease();
      }
      if (is_wanted) address->give_up();
    });
    file.is_watched = true;
  }
  return ++file.promise;
}

std::unique_ptr<MappedBytes> MappableFile::map(
    std::uint64_t promise,
    std::uint64_t offset,
    std::size_t num_bytes) const {
  MappedBytes::File& file = *file_;
  const std::lock_guard lock(file.mutex);
  struct stat status {};
  if (file.promise != promise || !file.has_lease() ||
      ::fstat(file.descriptor, &status) != 0 ||
      offset + num_bytes > static_cast<std::uint64_t>(status.st_size)) {
    return nullptr;
  }
  // Huge pages can only be mapped completely.
  const std::size_t unit = num_bytes < kPiece ? page_bytes() : kPiece;
  const std::uint64_t begin = offset / unit * unit;
  const std::uint64_t end = std::min<std::uint64_t>(
      (offset + num_bytes + unit - 1) / unit * unit,
      (static_cast<std::uint64_t>(status.st_size) + page_bytes() - 1) /
          page_bytes() * page_bytes());
  const std::size_t size = end - begin;
  void* const mapped = ::mmap(
      nullptr,
      size,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_NORESERVE,
      file.descriptor,
      static_cast<off_t>(begin));
  if (mapped == MAP_FAILED) return nullptr;
  auto bytes = std::unique_ptr<MappedBytes>(new MappedBytes());
  bytes->file_ = file_;
  bytes->begin_ = mapped;
  bytes->size_ = size;
  bytes->data_ = static_cast<std::byte*>(mapped) + (offset - begin);
  bytes->num_bytes_ = num_bytes;
  file.mapped.push_back(bytes.get());
  return bytes;
}

}  // namespace accelerate::detail
