#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <accelerate/error.h>
#include <accelerate/safetensors.h>

#include "base/text.h"

namespace accelerate::safetensors {

using detail::concat;

struct Writer::State {
  std::filesystem::path path;
  Header header;
  std::vector<std::string> order = {};
  std::uint64_t num_bytes = 0;
  std::uint64_t num_written = 0;
  int file = -1;

  [[noreturn]] void fail(std::string_view what) const {
    throw Error(concat(
        "[safetensors] cannot ",
        what,
        " ",
        path.string(),
        ": ",
        std::strerror(errno)));
  }
  void put(const char* data, std::size_t size) const {
    while (size > 0) {
      const ssize_t written = ::write(file, data, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write");
      data += written;
      size -= static_cast<std::size_t>(written);
    }
  }
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
  state_->file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (state_->file < 0) state_->fail("create");
  const std::string start = header_bytes(state_->header);
  state_->put(start.data(), start.size());
}

Writer::~Writer() {
  if (state_->file >= 0) ::close(state_->file);
}

const Header& Writer::header() const { return state_->header; }

const std::vector<std::string>& Writer::order() const { return state_->order; }

void Writer::write(std::span<const std::byte> bytes) {
  if (bytes.size() > state_->num_bytes - state_->num_written) {
    throw CheckpointError(concat(
        "[safetensors] more data was given for ",
        state_->path.string(),
        " than its tensors take: ",
        state_->num_bytes,
        " bytes"));
  }
  state_->put(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  state_->num_written += bytes.size();
}

void Writer::finish() {
  if (state_->num_written != state_->num_bytes) {
    throw CheckpointError(concat(
        "[safetensors] ",
        state_->num_written,
        " of ",
        state_->num_bytes,
        " bytes were given for ",
        state_->path.string()));
  }
  if (::fsync(state_->file) != 0) state_->fail("sync");
  if (::close(std::exchange(state_->file, -1)) != 0) state_->fail("close");
}

}  // namespace accelerate::safetensors
