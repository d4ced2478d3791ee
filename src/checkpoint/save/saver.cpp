#include "checkpoint/save/saver.h"

#include <utility>

namespace accelerate {

SaveTicket::SaveTicket(std::shared_ptr<detail::SaveProgress> progress)
    : progress_(std::move(progress)) {}

const std::filesystem::path& SaveTicket::path() const {
  return progress_->path;
}

bool SaveTicket::is_done() const {
  const std::lock_guard lock(progress_->mutex);
  return progress_->is_done;
}

bool SaveTicket::was_skipped() const {
  const std::lock_guard lock(progress_->mutex);
  return progress_->was_skipped;
}

void SaveTicket::wait() const {
  std::unique_lock lock(progress_->mutex);
  progress_->changed.wait(lock, [&] { return progress_->is_done; });
  if (!progress_->error) return;
  progress_->was_reported = true;
  std::rethrow_exception(progress_->error);
}

}  // namespace accelerate

namespace accelerate::detail {

namespace {

void finish(SaveProgress& progress, std::exception_ptr error) {
  const std::lock_guard lock(progress.mutex);
  progress.error = std::move(error);
  progress.is_done = true;
  progress.changed.notify_all();
}

std::shared_ptr<SaveProgress> progress_of(const CheckpointWriter& writer) {
  auto progress = std::make_shared<SaveProgress>();
  progress->path = writer.target();
  return progress;
}

// Waits for the copies, which later failures do not change.
std::string failure_of_copies(
    const SnapshotMemory& memory,
    CheckpointWriter& writer) {
  try {
    memory.wait();
    writer.require_intact();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

Saver::~Saver() { join(); }

bool Saver::is_busy() const {
  if (!current_) return false;
  const std::lock_guard lock(current_->mutex);
  return !current_->is_done;
}

void Saver::join() {
  if (thread_.joinable()) thread_.join();
}

void Saver::wait() {
  join();
  const auto last = std::exchange(current_, nullptr);
  if (!last) return;
  const std::lock_guard lock(last->mutex);
  if (last->error && !std::exchange(last->was_reported, true)) {
    std::rethrow_exception(last->error);
  }
}

std::shared_ptr<SaveProgress> Saver::run(
    std::unique_ptr<CheckpointWriter> writer) {
  auto progress = progress_of(*writer);
  writer->write();
  finish(*progress, nullptr);
  return progress;
}

std::shared_ptr<SaveProgress> Saver::start(
    std::unique_ptr<CheckpointWriter> writer) {
  std::string failure;
  try {
    memory_.take(writer->contents());
  } catch (const std::exception& error) {
    failure = error.what();
  }
  current_ = progress_of(*writer);
  thread_ = std::thread([this,
                         failure,
                         progress = current_,
                         writer = std::move(writer)]() mutable {
    std::exception_ptr error;
    try {
      if (failure.empty()) failure = failure_of_copies(memory_, *writer);
      writer->write(failure);
    } catch (...) {
      error = std::current_exception();
    }
    writer.reset();
    finish(*progress, std::move(error));
  });
  return current_;
}

}  // namespace accelerate::detail
