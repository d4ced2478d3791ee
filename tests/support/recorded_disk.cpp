#include "support/recorded_disk.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <stdexcept>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"

namespace accelerate::testing {

namespace fs = std::filesystem;
using detail::Bytes;
using detail::OutputFile;

namespace {

class UnsyncedFile final : public OutputFile {
 public:
  explicit UnsyncedFile(std::unique_ptr<OutputFile> file)
      : file_(std::move(file)) {}
  using OutputFile::write_at;
  void write_at(std::uint64_t offset, std::span<const Bytes> pieces) override {
    file_->write_at(offset, pieces);
  }
  void finish() override { file_.reset(); }

 private:
  std::unique_ptr<OutputFile> file_;
};

class UnsyncedDisk final : public detail::FileSystem {
 public:
  std::unique_ptr<OutputFile> create(const fs::path& path) override {
    return std::make_unique<UnsyncedFile>(disk_->create(path));
  }
  void create_directory(const fs::path& path) override {
    disk_->create_directory(path);
  }
  void rename(const fs::path& from, const fs::path& to) override {
    disk_->rename(from, to);
  }
  bool rename_to_unused(const fs::path& from, const fs::path& to) override {
    return disk_->rename_to_unused(from, to);
  }
  bool exchange(const fs::path& one, const fs::path& other) override {
    return disk_->exchange(one, other);
  }
  void link(const fs::path& from, const fs::path& to) override {
    disk_->link(from, to);
  }
  void remove_file(const fs::path& path) override { disk_->remove_file(path); }
  void remove_directory(const fs::path& path) override {
    disk_->remove_directory(path);
  }
  void sync_file(const fs::path&) override {}
  void sync_directory(const fs::path&) override {}

 private:
  std::shared_ptr<detail::FileSystem> disk_ = detail::make_file_system();
};

}  // namespace

std::shared_ptr<detail::FileSystem> make_unsynced_disk() {
  return std::make_shared<UnsyncedDisk>();
}

class RecordedDisk::File final : public OutputFile {
 public:
  File(RecordedDisk& disk, std::unique_ptr<OutputFile> file, int node)
      : disk_(disk), file_(std::move(file)), node_(node) {}
  using OutputFile::write_at;
  void write_at(std::uint64_t offset, std::span<const Bytes> pieces) override {
    const std::lock_guard lock(disk_.mutex_);
    DiskOperation operation{DiskOperation::Kind::write, node_, offset, {}, {}};
    for (const Bytes piece : pieces) {
      operation.bytes.append(
          reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    file_->write_at(offset, pieces);
    disk_.record(std::move(operation));
  }
  void finish() override {
    const std::lock_guard lock(disk_.mutex_);
    file_->finish();
    disk_.record({DiskOperation::Kind::sync, node_, 0, {}, {}});
  }

 private:
  RecordedDisk& disk_;
  std::unique_ptr<OutputFile> file_;
  int node_;
};

RecordedDisk::RecordedDisk(fs::path root, bool can_exchange)
    : root_(fs::canonical(root)), can_exchange_(can_exchange) {
  read_node(root_);
  at_first_ = now_;
}

int RecordedDisk::read_node(const fs::path& path) {
  const int node = static_cast<int>(now_.size());
  now_.emplace_back();
  if (fs::is_directory(path)) {
    now_[static_cast<std::size_t>(node)].is_directory = true;
    for (const auto& entry : fs::directory_iterator(path)) {
      const int inner = read_node(entry.path());
      now_[static_cast<std::size_t>(node)]
          .entries[entry.path().filename().string()] = inner;
    }
  } else {
    now_[static_cast<std::size_t>(node)].bytes = detail::read_file(path);
  }
  return node;
}

int RecordedDisk::find(const fs::path& path) const {
  int node = 0;
  const fs::path inside = path.lexically_normal().lexically_relative(root_);
  if (inside == ".") return node;
  for (const fs::path& step : inside) {
    const auto& entries = now_.at(static_cast<std::size_t>(node)).entries;
    const auto found = entries.find(step.string());
    if (found == entries.end()) {
      throw std::logic_error("not on the recorded disk: " + path.string());
    }
    node = found->second;
  }
  return node;
}

void RecordedDisk::apply(
    std::vector<DiskNode>& nodes,
    const DiskOperation& operation,
    bool by_half) {
  DiskNode& node = nodes[static_cast<std::size_t>(operation.node)];
  if (operation.kind == DiskOperation::Kind::write) {
    const std::size_t size = operation.bytes.size() / (by_half ? 2 : 1);
    if (node.bytes.size() < operation.offset + size) {
      node.bytes.resize(operation.offset + size);
    }
    std::memcpy(
        node.bytes.data() + operation.offset, operation.bytes.data(), size);
  }
  if (operation.kind == DiskOperation::Kind::truncate)
    node.bytes.resize(operation.offset);
  for (const auto& [name, target] : operation.names) {
    if (target < 0) {
      node.entries.erase(name);
    } else {
      node.entries[name] = target;
    }
  }
}

void RecordedDisk::record(DiskOperation operation) {
  apply(now_, operation, false);
  operations_.push_back(std::move(operation));
}

void RecordedDisk::name(const fs::path& path, int node) {
  record(
      {DiskOperation::Kind::names,
       find(path.parent_path()),
       0,
       {},
       {{path.filename().string(), node}}});
}

std::unique_ptr<OutputFile> RecordedDisk::create(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  auto file = disk_->create(path);
  const int node = static_cast<int>(now_.size());
  now_.emplace_back();
  name(path, node);
  return std::make_unique<File>(*this, std::move(file), node);
}

void RecordedDisk::create_directory(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  disk_->create_directory(path);
  const int node = static_cast<int>(now_.size());
  now_.emplace_back();
  now_.back().is_directory = true;
  name(path, node);
}

void RecordedDisk::rename(const fs::path& from, const fs::path& to) {
  const std::lock_guard lock(mutex_);
  disk_->rename(from, to);
  if (from.parent_path() != to.parent_path()) {
    // Either directory may become durable without the other.
    name(to, find(from));
    name(from, -1);
    return;
  }
  record(
      {DiskOperation::Kind::names,
       find(from.parent_path()),
       0,
       {},
       {{from.filename().string(), -1}, {to.filename().string(), find(from)}}});
}

bool RecordedDisk::rename_to_unused(const fs::path& from, const fs::path& to) {
  const std::lock_guard lock(mutex_);
  if (fs::exists(to)) return false;
  rename(from, to);
  return true;
}

bool RecordedDisk::exchange(const fs::path& one, const fs::path& other) {
  const std::lock_guard lock(mutex_);
  if (!can_exchange_ || !disk_->exchange(one, other)) return false;
  record(
      {DiskOperation::Kind::names,
       find(one.parent_path()),
       0,
       {},
       {{one.filename().string(), find(other)},
        {other.filename().string(), find(one)}}});
  return true;
}

void RecordedDisk::link(const fs::path& from, const fs::path& to) {
  const std::lock_guard lock(mutex_);
  disk_->link(from, to);
  name(to, find(from));
}

void RecordedDisk::remove_file(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  disk_->remove_file(path);
  name(path, -1);
}

void RecordedDisk::remove_directory(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  disk_->remove_directory(path);
  name(path, -1);
}

void RecordedDisk::sync_file(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  disk_->sync_file(path);
  record({DiskOperation::Kind::sync, find(path), 0, {}, {}});
}

void RecordedDisk::sync_directory(const fs::path& directory) {
  const std::lock_guard lock(mutex_);
  disk_->sync_directory(directory);
  record({DiskOperation::Kind::sync, find(directory), 0, {}, {}});
}

void RecordedDisk::note_write(
    const fs::path& path,
    std::uint64_t offset,
    std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  record(
      {DiskOperation::Kind::write, find(path), offset, std::string(bytes), {}});
}

void RecordedDisk::note_truncate(const fs::path& path, std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  record({DiskOperation::Kind::truncate, find(path), size, {}, {}});
}

namespace {

// A set of operations, and whether their writes are applied by half.
using Choice = std::pair<std::set<std::size_t>, bool>;

std::set<Choice> choices_of(const std::vector<std::size_t>& loose) {
  std::set<Choice> choices;
  const auto add = [&](std::set<std::size_t> chosen) {
    choices.emplace(chosen, true);
    choices.emplace(std::move(chosen), false);
  };
  const std::set<std::size_t> all(loose.begin(), loose.end());
  constexpr std::size_t kFew = 9;
  if (loose.size() <= kFew) {
    for (std::size_t bits = 0; bits < std::size_t{1} << loose.size(); ++bits) {
      std::set<std::size_t> chosen;
      for (std::size_t i = 0; i < loose.size(); ++i) {
        if ((bits >> i & 1U) != 0) chosen.insert(loose[i]);
      }
      add(std::move(chosen));
    }
    return choices;
  }
  add({});
  for (std::size_t i = 0; i < loose.size(); ++i) {
    add({loose.begin(), loose.begin() + static_cast<std::ptrdiff_t>(i) + 1});
    for (std::size_t j = i; j < loose.size(); ++j) {
      add({loose[i], loose[j]});
      auto rest = all;
      rest.erase(loose[i]);
      rest.erase(loose[j]);
      add(std::move(rest));
    }
  }
  return choices;
}

void materialise(
    const std::vector<DiskNode>& nodes,
    int node,
    const fs::path& path) {
  const DiskNode& what = nodes[static_cast<std::size_t>(node)];
  if (!what.is_directory) {
    std::ofstream(path, std::ios::binary) << what.bytes;
    return;
  }
  fs::create_directories(path);
  for (const auto& [name, inner] : what.entries) {
    materialise(nodes, inner, path / name);
  }
}

}  // namespace

std::size_t RecordedDisk::for_each_state(
    std::size_t num_operations,
    const fs::path& scratch,
    const std::function<void(const fs::path&)>& check) const {
  std::vector<std::size_t> loose;
  for (std::size_t i = 0; i < num_operations; ++i) {
    if (operations_[i].kind == DiskOperation::Kind::sync) continue;
    bool is_durable = false;
    for (std::size_t j = i + 1; j < num_operations; ++j) {
      is_durable = is_durable ||
          (operations_[j].kind == DiskOperation::Kind::sync &&
           operations_[j].node == operations_[i].node);
    }
    if (!is_durable) loose.push_back(i);
  }
  const std::set<Choice> choices = choices_of(loose);
  const std::set<std::size_t> all(loose.begin(), loose.end());
  for (const auto& [chosen, by_half] : choices) {
    std::vector<DiskNode> nodes = at_first_;
    nodes.resize(now_.size());
    for (std::size_t i = at_first_.size(); i < nodes.size(); ++i) {
      nodes[i].is_directory = now_[i].is_directory;
    }
    for (std::size_t i = 0; i < num_operations; ++i) {
      const bool is_loose = all.contains(i);
      if (is_loose && !chosen.contains(i)) continue;
      apply(nodes, operations_[i], is_loose && by_half);
    }
    fs::remove_all(scratch);
    materialise(nodes, 0, scratch);
    check(scratch);
  }
  return choices.size();
}

class FailingDisk::File final : public OutputFile {
 public:
  File(FailingDisk& disk, std::unique_ptr<OutputFile> file)
      : disk_(disk), file_(std::move(file)) {}
  using OutputFile::write_at;
  void write_at(std::uint64_t offset, std::span<const Bytes> pieces) override {
    if (disk_.is_due()) {
      file_->write_at(offset, pieces.first(pieces.size() / 2));
      disk_.fail();
    }
    file_->write_at(offset, pieces);
  }
  void finish() override {
    disk_.fail_if_due();
    file_->finish();
  }

 private:
  FailingDisk& disk_;
  std::unique_ptr<OutputFile> file_;
};

FailingDisk::FailingDisk(std::size_t fails_at, int error, bool goes_on)
    : fails_at_(fails_at), error_(error), goes_on_(goes_on) {}

bool FailingDisk::is_due() {
  const std::lock_guard lock(mutex_);
  const std::size_t number = count_++;
  return number == fails_at_ || (goes_on_ && number > fails_at_);
}

void FailingDisk::fail() const {
  throw Error(std::string("[files] cannot do it: ") + std::strerror(error_));
}

void FailingDisk::fail_if_due() {
  if (is_due()) fail();
}

std::unique_ptr<OutputFile> FailingDisk::create(const fs::path& path) {
  fail_if_due();
  return std::make_unique<File>(*this, disk_->create(path));
}
void FailingDisk::create_directory(const fs::path& path) {
  fail_if_due();
  disk_->create_directory(path);
}
void FailingDisk::rename(const fs::path& from, const fs::path& to) {
  fail_if_due();
  disk_->rename(from, to);
}
bool FailingDisk::rename_to_unused(const fs::path& from, const fs::path& to) {
  fail_if_due();
  return disk_->rename_to_unused(from, to);
}
bool FailingDisk::exchange(const fs::path& one, const fs::path& other) {
  fail_if_due();
  return disk_->exchange(one, other);
}
void FailingDisk::link(const fs::path& from, const fs::path& to) {
  fail_if_due();
  disk_->link(from, to);
}
void FailingDisk::remove_file(const fs::path& path) {
  fail_if_due();
  disk_->remove_file(path);
}
void FailingDisk::remove_directory(const fs::path& path) {
  fail_if_due();
  disk_->remove_directory(path);
}
void FailingDisk::sync_file(const fs::path& path) {
  fail_if_due();
  disk_->sync_file(path);
}
void FailingDisk::sync_directory(const fs::path& directory) {
  fail_if_due();
  disk_->sync_directory(directory);
}

}  // namespace accelerate::testing
