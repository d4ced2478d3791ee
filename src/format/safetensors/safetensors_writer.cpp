#include <algorithm>
#include <utility>

#include <accelerate/error.h>
#include <accelerate/safetensors.h>

#include "base/files/file_system.h"
#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::safetensors {

using detail::format;

struct Writer::State {
  std::filesystem::path path;
  Header header;
  std::vector<std::string> order = {};
  std::uint64_t num_bytes = 0;
  std::uint64_t num_written = 0;
  std::shared_ptr<detail::FileSystem> disk = detail::make_file_system();
  std::filesystem::path temporary = detail::temporary_sibling(path);
  std::unique_ptr<detail::OutputFile> file = nullptr;
};

Writer::Writer(
    const std::filesystem::path& path,
    const std::vector<Declaration>& tensors,
    std::map<std::string, std::string> metadata)
    : state_(std::make_unique<State>(
          State{path, lay_out(tensors, std::move(metadata))})) {
  for (const auto& [name, info] : state_->header.tensors) {
    state_->num_bytes = std::max(state_->num_bytes, info.end);
  }
  state_->order = names_in_order(state_->header);
  const std::string start = header_bytes(state_->header);
  state_->file = state_->disk->create(state_->temporary);
  state_->file->write_at(0, std::as_bytes(std::span(start)));
}

Writer::~Writer() {
  if (state_->file == nullptr) return;
  state_->file.reset();
  std::error_code ignored;
  std::filesystem::remove(state_->temporary, ignored);
}

const Header& Writer::header() const { return state_->header; }

const std::vector<std::string>& Writer::order() const { return state_->order; }

void Writer::write(std::span<const std::byte> bytes) {
  if (bytes.size() > state_->num_bytes - state_->num_written) {
    throw CheckpointError(format(
        "[safetensors] data for {} exceeds the {} bytes of its tensors",
        state_->path.string(),
        state_->num_bytes));
  }
  state_->file->write_at(
      state_->header.data_begin + state_->num_written, bytes);
  state_->num_written += bytes.size();
}

void Writer::finish() {
  if (state_->file == nullptr) {
    throw CheckpointError(format(
        "[safetensors] finish() must be called once for "
        "{}, but was called twice",
        state_->path.string()));
  }
  if (state_->num_written != state_->num_bytes) {
    throw CheckpointError(format(
        "[safetensors] only {} of {} bytes were written for {}",
        state_->num_written,
        state_->num_bytes,
        state_->path.string()));
  }
  state_->file->finish();
  state_->disk->rename(state_->temporary, state_->path);
  state_->file.reset();
  state_->disk->sync_directory(detail::directory_of(state_->path));
}

}  // namespace accelerate::safetensors
