#include "gate/disk/disk_tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

struct DiskTensors::Entry {
  enum class State {
    absent,    // in the file only
    reading,   // on its way into `block`
    resident,  // in `block`, which the tensor shows
    writing    // on its way to the file; the tensor shows nothing
  };

  std::size_t number = 0;
  std::unique_ptr<GatedTensor> gate = nullptr;
  std::uint64_t begin = 0;  // in the file
  std::uint64_t bytes = 0;
  State state = State::resident;
  at::Tensor block = {};
  TransferQueue::Ticket ticket = nullptr;
  int num_holds = 0;
  bool is_dirty = true;
  bool is_awaited = false;  // since begin_fetch()
  std::uint64_t last_use = 0;

  [[nodiscard]] const at::Tensor& tensor() const { return gate->tensor(); }
  [[nodiscard]] std::span<std::byte> memory() const {
    return {static_cast<std::byte*>(block.data_ptr()), block.nbytes()};
  }
  void show_block() const {
    const at::Tensor& shown = tensor();
    gate->fill(block.narrow(0, 0, static_cast<std::int64_t>(bytes))
                   .view(shown.scalar_type())
                   .view(shown.sizes()));
  }
};

// Entries in memory that nobody holds. Others may take their room.
class DiskTensors::IdleEntries {
 public:
  // Does nothing for an entry that has no memory.
  void add(Entry& entry) {
    if (entry.state != Entry::State::resident &&
        entry.state != Entry::State::reading) {
      return;
    }
    entry.last_use = ++num_uses_;
    (entry.is_awaited ? awaited_ : others_).emplace(entry.last_use, &entry);
  }
  void remove(Entry& entry) {
    others_.erase(entry.last_use);
    awaited_.erase(entry.last_use);
    entry.is_awaited = false;
  }
  // Removes the least recently used one; those that are awaited come last, or
  // not at all. Null if there is none.
  Entry* remove_oldest(bool even_awaited) {
    const auto& from = others_.empty() && even_awaited ? awaited_ : others_;
    if (from.empty()) return nullptr;
    Entry* const oldest = from.begin()->second;
    remove(*oldest);
    return oldest;
  }

 private:
  std::uint64_t num_uses_ = 0;
  /// By last use: those that begin_fetch() was called for, and the others.
  std::map<std::uint64_t, Entry*> awaited_, others_;
};

namespace {

[[noreturn]] void
fail(std::string_view verb, const ScratchFile& file, int error) {
  throw Error(format(
      "[gate] {} {} failed: {}; resume from the last checkpoint",
      verb,
      file.description(),
      error == TransferQueue::kEndOfFile ? "the file ends too early"
                                         : std::strerror(error)));
}

UnavailableMessages messages(const std::string& what) {
  return {
      format(
          "[gate] a tensor was read through its address while it lies in a "
          "file ({}); read it with operators, which bring it into memory",
          what),
      format(
          "[gate] a tensor was read that lay in a file, which is gone with "
          "the Accelerator ({}); keep the Accelerator, or save what is needed",
          what)};
}

// Calls `use` with each tensor among the arguments.
template <class Use>
void for_each_tensor(const c10::IValue& value, Use&& use) {
  if (value.isTensor()) {
    use(value);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef())
      for_each_tensor(item, use);
  }
}

}  // namespace

DiskTensors::DiskTensors(
    const Options& options,
    std::unique_ptr<TransferQueue> queue)
    : options_(options),
      file_(options.directory, options.what),
      memory_(options.device, options.memory_bytes),
      idle_(std::make_unique<IdleEntries>()),
      queue_(std::move(queue)) {}

DiskTensors::~DiskTensors() = default;

DiskTensors::Entry* DiskTensors::find(const at::Tensor& tensor) const {
  const auto number = GatedTensor::unit_of(tensor, *this);
  return number ? entries_[*number].get() : nullptr;
}

std::vector<DiskTensors::Entry*> DiskTensors::find_all(
    std::span<const at::Tensor> tensors) const {
  std::vector<Entry*> found;
  for (const at::Tensor& tensor : tensors) {
    Entry* const entry = find(tensor);
    if (entry != nullptr && std::ranges::find(found, entry) == found.end())
      found.push_back(entry);
  }
  return found;
}

std::uint64_t DiskTensors::most_bytes() const {
  const std::lock_guard lock(mutex_);
  return memory_.most_in_use();
}

DiskTensors::Entry& DiskTensors::make_entry(
    const at::Tensor& tensor,
    Lock& lock) {
  const auto bytes = static_cast<std::uint64_t>(tensor.nbytes());
  const std::uint64_t begin = file_.allocate(bytes);
  make_room(bytes, lock);
  std::size_t number = entries_.size();
  if (free_numbers_.empty()) {
    entries_.emplace_back();
  } else {
    number = free_numbers_.back();
    free_numbers_.pop_back();
  }
  Entry& entry = *(entries_[number] = std::make_unique<Entry>());
  entry.number = number;
  entry.begin = begin;
  entry.bytes = bytes;
  entry.block = memory_.take(bytes);
  return entry;
}

void DiskTensors::put_behind_gate(Entry& entry, const at::Tensor& tensor) {
  entry.gate = std::make_unique<GatedTensor>(
      tensor, messages(file_.description()), *this, entry.number);
  if (entry.gate->is_filled()) static_cast<void>(entry.gate->release());
  entry.show_block();
}

void DiskTensors::add(const at::Tensor& tensor) {
  if (tensor.nbytes() == 0) return;
  Lock lock(mutex_);
  if (find(tensor) != nullptr) return;
  Entry& entry = make_entry(tensor, lock);
  std::memcpy(entry.block.data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  put_behind_gate(entry, tensor);
  idle_->add(entry);
}

at::Tensor DiskTensors::make(
    at::IntArrayRef sizes,
    const at::TensorOptions& options) {
  const at::Tensor tensor = at::empty(sizes, options.device(at::kMeta));
  if (tensor.nbytes() == 0) return at::empty(sizes, options);
  Lock lock(mutex_);
  Entry& entry = make_entry(tensor, lock);
  put_behind_gate(entry, tensor);
  idle_->add(entry);
  return tensor;
}

void DiskTensors::forget_unused() {
  const Lock lock(mutex_);
  for (auto& entry : entries_) {
    // The gate has the only handle.
    if (entry == nullptr || entry->num_holds > 0 ||
        entry->tensor().use_count() > 1) {
      continue;
    }
    idle_->remove(*entry);
    // With the lock, so that no entry comes or goes meanwhile.
    if (entry->state == Entry::State::writing)
      end_write(*entry, queue_->wait(entry->ticket));
    entry->is_dirty = false;
    leave(*entry);
    file_.free(entry->begin, entry->bytes);
    free_numbers_.push_back(entry->number);
    entry.reset();
  }
}

void DiskTensors::begin_fetch(std::span<const at::Tensor> tensors) {
  if (!options_.reads_ahead) return;
  const Lock lock(mutex_);
  collect_written();
  for (Entry* const entry : find_all(tensors)) {
    if (entry->state != Entry::State::absent) continue;
    while (!has_room(entry->bytes)) {
      Entry* const oldest = idle_->remove_oldest(/*even_awaited=*/false);
      if (oldest == nullptr) return;
      leave(*oldest);
    }
    begin_read(*entry);
    entry->is_awaited = true;
    idle_->add(*entry);
  }
}

void DiskTensors::hold(std::span<const at::Tensor> tensors, DiskUse use) {
  Lock lock(mutex_);
  hold_entries(find_all(tensors), use, lock);
}

void DiskTensors::let_go(std::span<const at::Tensor> tensors) {
  Lock lock(mutex_);
  for (Entry* const entry : find_all(tensors)) {
    if (--entry->num_holds == 0) leave(*entry);
  }
  if (!options_.writes_behind) finish_writes(lock);
}

void DiskTensors::flush() {
  Lock lock(mutex_);
  finish_writes(lock);
  if (write_error_ != 0) fail("writing", file_, write_error_);
}

void DiskTensors::hold_entries(
    std::span<Entry* const> entries,
    DiskUse use,
    Lock& lock) {
  // What is replaced needs nothing from the file, and is often replaced in
  // destructors. The next use reports the error.
  if (write_error_ != 0 && use != DiskUse::replace)
    fail("writing", file_, write_error_);
  for (Entry* const entry : entries) {
    if (entry->num_holds++ == 0) idle_->remove(*entry);
  }
  try {
    for (Entry* const entry : entries) {
      if (entry->state == Entry::State::absent) make_room(entry->bytes, lock);
      if (entry->state != Entry::State::absent) continue;
      if (use == DiskUse::replace) {
        entry->block = memory_.take(entry->bytes);
        entry->state = Entry::State::resident;
        entry->show_block();
      } else {
        begin_read(*entry);
      }
    }
    for (Entry* const entry : entries) {
      while (entry->state == Entry::State::writing) finish_write(*entry, lock);
      while (entry->state == Entry::State::reading) finish_read(*entry, lock);
      entry->is_dirty = entry->is_dirty || use != DiskUse::read;
    }
  } catch (...) {
    for (Entry* const entry : entries) {
      if (--entry->num_holds == 0) idle_->add(*entry);
    }
    throw;
  }
}

bool DiskTensors::has_room(std::uint64_t bytes) const {
  return memory_.bytes_in_use() + bytes <= options_.memory_bytes;
}

void DiskTensors::begin_read(Entry& entry) {
  entry.block = memory_.take(entry.bytes);
  entry.ticket = queue_->read(file_, entry.begin, entry.memory());
  entry.state = Entry::State::reading;
  entry.is_dirty = false;
}

void DiskTensors::finish_read(Entry& entry, Lock& lock) {
  const TransferQueue::Ticket ticket = entry.ticket;
  lock.unlock();
  const int error = queue_->wait(ticket);
  lock.lock();
  if (entry.state != Entry::State::reading || entry.ticket != ticket) return;
  entry.ticket.reset();
  if (error != 0) {
    memory_.give(std::move(entry.block));
    entry.state = Entry::State::absent;
    fail("reading", file_, error);
  }
  entry.state = Entry::State::resident;
  entry.show_block();
}

// Gives up the memory of an entry that nobody holds.
void DiskTensors::leave(Entry& entry) {
  if (entry.state == Entry::State::reading) {
    static_cast<void>(queue_->wait(std::exchange(entry.ticket, nullptr)));
  } else if (entry.state == Entry::State::resident) {
    static_cast<void>(entry.gate->release());
    if (entry.is_dirty) {
      entry.ticket = queue_->write(file_, entry.begin, entry.memory());
      entry.state = Entry::State::writing;
      entry.is_dirty = false;
      being_written_.push_back(&entry);
      return;
    }
  } else {
    return;
  }
  memory_.give(std::move(entry.block));
  entry.state = Entry::State::absent;
}

void DiskTensors::end_write(Entry& entry, int error) {
  std::erase(being_written_, &entry);
  entry.ticket.reset();
  if (error != 0 && write_error_ == 0) write_error_ = error;
  if (entry.num_holds > 0) {
    entry.state = Entry::State::resident;
    entry.show_block();
    return;
  }
  memory_.give(std::move(entry.block));
  entry.state = Entry::State::absent;
}

void DiskTensors::finish_write(const Entry& entry, Lock& lock) {
  const TransferQueue::Ticket ticket = entry.ticket;
  const std::size_t number = entry.number;
  lock.unlock();
  const int error = queue_->wait(ticket);
  lock.lock();
  // Another thread may have ended the write, and forgotten the entry.
  Entry* const written = entries_[number].get();
  if (written != nullptr && written->ticket == ticket)
    end_write(*written, error);
}

void DiskTensors::finish_writes(Lock& lock) {
  while (!being_written_.empty()) finish_write(*being_written_.front(), lock);
}

void DiskTensors::collect_written() {
  for (std::size_t i = being_written_.size(); i-- > 0;) {
    Entry& entry = *being_written_[i];
    if (queue_->has_ended(entry.ticket))
      end_write(entry, queue_->wait(entry.ticket));
  }
}

void DiskTensors::make_room(std::uint64_t bytes, Lock& lock) {
  collect_written();
  while (!has_room(bytes)) {
    if (Entry* const oldest = idle_->remove_oldest(/*even_awaited=*/true)) {
      leave(*oldest);
    } else if (!being_written_.empty()) {
      finish_write(*being_written_.front(), lock);
    } else {
      return;
    }
  }
}

void DiskTensors::call(GatedCall& call) {
  const auto schema = call.operation().schema();
  std::vector<Entry*> used, changed;
  {
    Lock lock(mutex_);
    const auto arguments = call.arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = schema.arguments()[i].alias_info();
      const bool is_written = alias != nullptr && alias->isWrite();
      for_each_tensor(arguments[i], [&](const c10::IValue& value) {
        const auto number = GatedTensor::unit_of(value, *this);
        if (!number) return;
        Entry* const entry = entries_[*number].get();
        if (std::ranges::find(used, entry) == used.end()) used.push_back(entry);
        if (is_written) changed.push_back(entry);
      });
    }
    hold_entries(used, DiskUse::read, lock);
  }
  const auto end = [&] {
    const Lock lock(mutex_);
    for (Entry* const entry : changed) entry->is_dirty = true;
    for (Entry* const entry : used) {
      if (--entry->num_holds == 0) idle_->add(*entry);
    }
  };
  try {
    call.run();
  } catch (...) {
    end();
    throw;
  }
  end();
}

namespace {

std::map<DiskTensors*, std::vector<at::Tensor>> in_files(
    const std::vector<at::Tensor>& tensors) {
  std::map<DiskTensors*, std::vector<at::Tensor>> found;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (auto* const disk = dynamic_cast<DiskTensors*>(keeper_of(tensor)))
      found[disk].push_back(tensor);
  }
  return found;
}

}  // namespace

HeldTensors::HeldTensors(const std::vector<at::Tensor>& tensors, DiskUse use) {
  for (auto& [disk, kept] : in_files(tensors)) {
    try {
      disk->hold(kept, use);
    } catch (...) {
      for (const auto& [other, held] : by_disk_) other->let_go(held);
      throw;
    }
    by_disk_.emplace(disk, std::move(kept));
  }
}

HeldTensors::~HeldTensors() {
  for (const auto& [disk, kept] : by_disk_) disk->let_go(kept);
}

void begin_fetch(const std::vector<at::Tensor>& tensors) {
  for (const auto& [disk, kept] : in_files(tensors)) disk->begin_fetch(kept);
}

}  // namespace accelerate::detail
