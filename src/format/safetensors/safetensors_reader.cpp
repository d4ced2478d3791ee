#include <algorithm>
#include <cstring>

#include <accelerate/error.h>
#include <accelerate/safetensors.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "format/safetensors/header_format.h"

namespace accelerate::safetensors {

using detail::format;

struct Reader::State {
  std::filesystem::path path;
  detail::MappedFile file;
  Header header;
};

namespace {

// Most headers are shorter.
constexpr std::size_t kFirstBytes = std::size_t{64} << 10U;

// Requests the header alone. Touching it first would make the kernel read
// megabytes of data around it, which a load then reads again, or finds partly
// cached and reads through the page cache.
void request_header(const detail::MappedFile& file) {
  file.will_need(0, kFirstBytes);
  if (file.bytes().size() < kLengthBytes) return;
  const std::size_t end = kLengthBytes +
      std::min(header_length(file.bytes().first<kLengthBytes>()),
               kMostHeaderBytes);
  if (end > kFirstBytes) file.will_need(kFirstBytes, end - kFirstBytes);
}

}  // namespace

Reader::Reader(const std::filesystem::path& path) {
  detail::MappedFile file(path);
  request_header(file);
  Header header =
      parse_header(file.bytes(), file.bytes().size(), path.string());
  state_ =
      std::make_unique<State>(State{path, std::move(file), std::move(header)});
}

Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

const std::filesystem::path& Reader::path() const { return state_->path; }

const Header& Reader::header() const { return state_->header; }

bool Reader::contains(const std::string& name) const {
  return state_->header.tensors.contains(name);
}

const TensorInfo& Reader::info(const std::string& name) const {
  const auto& tensors = state_->header.tensors;
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, info] : tensors) names.push_back(known);
  const auto meant = detail::nearest(name, names);
  throw CheckpointError(format(
      "[safetensors] {} has no tensor '{}'{}",
      state_->path.string(),
      detail::printable(name),
      meant ? format("; was '{}' meant?", detail::printable(*meant)) : ""));
}

std::span<const std::byte> Reader::bytes(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  return state_->file.bytes()
      .subspan(state_->header.data_begin)
      .subspan(tensor.begin, tensor.num_bytes());
}

namespace {

// Returns what is wrong with reading `box` into `num_bytes` bytes; empty if
// nothing is.
std::string_view slice_complaint(
    const TensorInfo& tensor,
    const Box& box,
    std::size_t num_bytes) {
  const Shape& shape = tensor.shape;
  const int bits = bits_of(tensor.dtype);
  if (bits % 8 != 0) return "its elements are smaller than a byte";
  if (box.begin.size() != shape.size() || box.size.size() != shape.size())
    return "the slice has a different number of dimensions";
  auto count = static_cast<std::uint64_t>(bits) / 8;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (box.size[i] > shape[i] || box.begin[i] > shape[i] - box.size[i])
      return "the slice is not inside the tensor";
    count *= box.size[i];
  }
  return count == num_bytes ? "" : "the buffer has a different number of bytes";
}

}  // namespace

void Reader::read(
    const std::string& name,
    const Box& box,
    std::span<std::byte> out) const {
  const TensorInfo& tensor = info(name);
  const Shape& shape = tensor.shape;
  if (const auto complaint = slice_complaint(tensor, box, out.size());
      !complaint.empty()) {
    throw CheckpointError(format(
        "[safetensors] cannot read a slice of '{}' in {}: {}",
        detail::printable(name),
        state_->path.string(),
        complaint));
  }
  if (out.empty()) return;
  const auto element = static_cast<std::uint64_t>(bits_of(tensor.dtype)) / 8;

  // Dimensions from `inner` on are read in full, so they are copied as one run.
  std::size_t inner = shape.size();
  std::uint64_t run = element;
  while (inner > 0 && box.size[inner - 1] == shape[inner - 1]) {
    run *= shape[--inner];
  }
  // A range of the dimension before them is still one run.
  const std::uint64_t step = run;
  if (inner > 0) run *= box.size[--inner];
  Shape strides(inner + 1, 0);
  std::uint64_t stride = step;
  for (std::size_t i = inner + 1; i-- > 0;) {
    strides[i] = stride;
    if (i < shape.size()) stride *= shape[i];
  }
  const std::span<const std::byte> all = bytes(name);
  Shape index(inner, 0);
  std::byte* to = out.data();
  while (true) {
    std::uint64_t from =
        inner < shape.size() ? box.begin[inner] * strides[inner] : 0;
    for (std::size_t i = 0; i < inner; ++i) {
      from += (box.begin[i] + index[i]) * strides[i];
    }
    std::memcpy(to, all.data() + from, run);
    to += run;
    std::size_t next = inner;
    while (next > 0 && ++index[next - 1] == box.size[next - 1]) {
      index[--next] = 0;
    }
    if (next == 0) return;
  }
}

}  // namespace accelerate::safetensors
