#include "train/elastic/directory_moves.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>

#include <ATen/Functions.h>

#include <accelerate/error.h>
#include <accelerate/world.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

// A stream consists of the size of the file list, the list, and the files'
// bytes.
using ListSize = std::uint64_t;

constexpr std::uint64_t kMoveBytes = 8U << 20U;

struct FileInList {
  std::string name;
  std::uint64_t num_bytes = 0;
};

[[noreturn]] void fail_with(const fs::path& path) {
  throw Error(format(
      "[files] cannot move {}: {}",
      path.string(),
      errno == 0 ? "it has changed" : std::strerror(errno)));
}

std::vector<FileInList> files_below(const fs::path& directory) {
  std::vector<FileInList> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    files.push_back(
        {entry.path().lexically_relative(directory).generic_string(),
         entry.file_size()});
  }
  std::ranges::sort(
      files, [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

std::vector<FileInList> files_of(
    const fs::path& directory,
    const std::vector<std::string>& names) {
  std::vector<FileInList> files;
  for (const std::string& name : names)
    files.push_back({name, fs::file_size(directory / name)});
  return files;
}

/// The stream of a directory. Unreadable bytes are sent as zeros, so that the
/// other rank does not wait for them.
class SentDirectory {
 public:
  explicit SentDirectory(const DirectoryMove& move) : directory_(move.source) {
    try {
      files_ = move.files ? files_of(directory_, *move.files)
                          : files_below(directory_);
    } catch (const std::exception& error) {
      problem_ = error.what();
    }
    std::string list;
    for (const FileInList& file : files_)
      list += format("{} {}\n", file.num_bytes, file.name);
    const ListSize size = list.size();
    head_.assign(reinterpret_cast<const char*>(&size), sizeof size);
    head_ += list;
    num_left_ = head_.size();
    for (const FileInList& file : files_) num_left_ += file.num_bytes;
  }

  [[nodiscard]] std::uint64_t num_left() const { return num_left_; }
  [[nodiscard]] const std::string& problem() const { return problem_; }

  at::Tensor next() {
    const std::uint64_t size = std::min(kMoveBytes, num_left_);
    const at::Tensor part =
        at::zeros({static_cast<std::int64_t>(size)}, at::kByte);
    char* out = reinterpret_cast<char*>(part.mutable_data_ptr<std::uint8_t>());
    num_left_ -= size;
    std::uint64_t wanted = size;
    const std::uint64_t from_head =
        std::min<std::uint64_t>(wanted, head_.size() - head_sent_);
    std::memcpy(out, head_.data() + head_sent_, from_head);
    head_sent_ += from_head;
    wanted -= from_head;
    out += from_head;
    while (wanted > 0) {
      const FileInList& file = files_[file_];
      const std::uint64_t count = std::min(wanted, file.num_bytes - file_sent_);
      read(file, out, count);
      wanted -= count;
      out += count;
      file_sent_ += count;
      if (file_sent_ < file.num_bytes) continue;
      ++file_;
      file_sent_ = 0;
      open_.reset();
    }
    return part;
  }

 private:
  void read(const FileInList& file, char* out, std::uint64_t count) {
    if (!problem_.empty() || count == 0) return;
    try {
      errno = 0;
      if (!open_) open_.emplace(directory_ / file.name, std::ios::binary);
      if (!open_->read(out, static_cast<std::streamsize>(count)))
        fail_with(directory_ / file.name);
    } catch (const std::exception& error) {
      problem_ = error.what();
    }
  }

  fs::path directory_;
  std::vector<FileInList> files_;
  std::string problem_;
  std::string head_;
  std::uint64_t head_sent_ = 0;
  std::size_t file_ = 0;
  std::uint64_t file_sent_ = 0;
  std::optional<std::ifstream> open_;
  std::uint64_t num_left_ = 0;
};

/// Receives a stream into a hidden directory, renamed to its final name at the
/// end. After a failure it reads and discards the rest.
class ReceivedDirectory {
 public:
  explicit ReceivedDirectory(fs::path target)
      : target_(std::move(target)),
        hidden_(
            target_.parent_path() /
            format(".{}.moving", target_.filename().string())) {
    attempt([&] {
      fs::remove_all(hidden_);
      fs::create_directory(hidden_);
    });
  }
  ReceivedDirectory(const ReceivedDirectory&) = delete;
  ReceivedDirectory& operator=(const ReceivedDirectory&) = delete;
  ~ReceivedDirectory() {
    std::error_code ignored;
    fs::remove_all(hidden_, ignored);
  }

  void take(const char* bytes, std::uint64_t count) {
    attempt([&] {
      while (count > 0) {
        const std::uint64_t taken =
            is_listed_ ? write(bytes, count) : add_to_head(bytes, count);
        bytes += taken;
        count -= taken;
      }
    });
  }

  // Gives the directory its name; returns what went wrong.
  std::string finish() {
    attempt([&] {
      skip_complete();
      if (!is_listed_ || file_ != files_.size() || files_.empty())
        throw Error(format("[files] not all of {} arrived", target_.string()));
      fs::remove_all(target_);
      fs::rename(hidden_, target_);
    });
    return problem_;
  }

 private:
  template <class Body>
  void attempt(const Body& body) {
    if (!problem_.empty()) return;
    try {
      body();
    } catch (const std::exception& error) {
      problem_ = error.what();
      open_.reset();
      std::error_code ignored;
      fs::remove_all(hidden_, ignored);
    }
  }

  std::uint64_t add_to_head(const char* bytes, std::uint64_t count) {
    ListSize size = 0;
    const auto wanted = [&] {
      if (head_.size() < sizeof size) return std::uint64_t{sizeof size};
      std::memcpy(&size, head_.data(), sizeof size);
      return sizeof size + size;
    };
    const std::uint64_t taken = std::min(count, wanted() - head_.size());
    head_.append(bytes, taken);
    if (head_.size() < sizeof size || head_.size() < wanted()) return taken;
    std::istringstream lines(head_.substr(sizeof size));
    for (FileInList file; lines >> file.num_bytes;) {
      lines.get();
      std::getline(lines, file.name);
      if (!stays_below_directory(file.name))
        throw Error(format(
            "[files] another rank sent \"{}\", which is not inside {}",
            printable(file.name),
            target_.string()));
      files_.push_back(file);
    }
    is_listed_ = true;
    skip_complete();
    return taken;
  }

  std::uint64_t write(const char* bytes, std::uint64_t count) {
    if (file_ == files_.size())
      throw Error(format(
          "[files] more than the announced bytes of {} arrived",
          target_.string()));
    const FileInList& file = files_[file_];
    const std::uint64_t taken = std::min(count, file.num_bytes - written_);
    errno = 0;
    if (!open_->write(bytes, static_cast<std::streamsize>(taken)))
      fail_with(hidden_ / file.name);
    written_ += taken;
    skip_complete();
    return taken;
  }

  // Closes files that are complete, and opens the next one.
  void skip_complete() {
    while (file_ < files_.size()) {
      const FileInList& file = files_[file_];
      if (!open_) {
        const fs::path path = hidden_ / file.name;
        fs::create_directories(path.parent_path());
        errno = 0;
        open_.emplace(path, std::ios::binary);
        if (!*open_) fail_with(path);
      }
      if (written_ < file.num_bytes) return;
      errno = 0;
      open_->close();
      if (!*open_) fail_with(hidden_ / file.name);
      open_.reset();
      ++file_;
      written_ = 0;
    }
  }

  fs::path target_;
  fs::path hidden_;
  std::string problem_;
  std::string head_;
  bool is_listed_ = false;
  std::vector<FileInList> files_;
  std::size_t file_ = 0;
  std::uint64_t written_ = 0;
  std::optional<std::ofstream> open_;
};

// The largest number of all ranks.
std::uint64_t largest(const Group& group, std::uint64_t number) {
  const at::Tensor most = at::full(
      {1}, static_cast<std::int64_t>(number), at::TensorOptions(at::kLong));
  group.all_reduce(most, ReduceOp::max);
  return static_cast<std::uint64_t>(most.item<std::int64_t>());
}

}  // namespace

std::string move_directories(
    const Group& group,
    const std::vector<DirectoryMove>& moves) {
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::unique_ptr<SentDirectory>> sent(size);
  std::vector<std::unique_ptr<ReceivedDirectory>> received(size);
  std::uint64_t rounds = 0;
  for (const DirectoryMove& move : moves) {
    if (move.from == group.rank()) {
      auto& out = sent[static_cast<std::size_t>(move.to)];
      out = std::make_unique<SentDirectory>(move);
      rounds =
          std::max(rounds, (out->num_left() + kMoveBytes - 1) / kMoveBytes);
    }
    if (move.to == group.rank()) {
      received[static_cast<std::size_t>(move.from)] =
          std::make_unique<ReceivedDirectory>(move.target);
    }
  }
  const at::Tensor nothing = at::empty({0}, at::kByte);
  for (rounds = largest(group, rounds); rounds > 0; --rounds) {
    std::vector<at::Tensor> parts;
    for (const auto& each : sent)
      parts.push_back(each ? each->next() : nothing);
    const std::vector<at::Tensor> arrived = group.all_to_all(parts);
    for (std::size_t i = 0; i < size; ++i) {
      if (!received[i] || arrived[i].numel() == 0) continue;
      const at::Tensor bytes = arrived[i].contiguous();
      received[i]->take(
          reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>()),
          static_cast<std::uint64_t>(bytes.numel()));
    }
  }
  std::string problem;
  for (const auto& each : received) {
    if (each && problem.empty()) problem = each->finish();
  }
  for (const auto& each : sent) {
    if (each && problem.empty()) problem = each->problem();
  }
  return problem;
}

}  // namespace accelerate::detail
