#include "format/tensors/stored_tensors.h"

#include <algorithm>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using safetensors::Box;
using safetensors::Shape;

// Reads elements [begin, begin + count) of `box`, one row after another.
void read_range(
    const StoredTensor& tensor,
    const Box& box,
    std::size_t axis,
    std::uint64_t begin,
    std::uint64_t count,
    std::span<std::byte> out,
    std::vector<BoxToRead>& wanted) {
  if (count == 0) return;
  std::uint64_t row = 1;
  for (std::size_t i = axis + 1; i < box.size.size(); ++i) row *= box.size[i];
  const std::uint64_t volume =
      axis < box.size.size() ? row * box.size[axis] : 1;
  if (count == volume) {
    wanted.push_back({&tensor, box, out});
    return;
  }
  const std::uint64_t width = out.size() / count;
  std::uint64_t done = 0;
  while (done < count) {
    const std::uint64_t first = (begin + done) / row;
    const std::uint64_t inside = (begin + done) % row;
    const std::uint64_t left = count - done;
    Box slice = box;
    slice.begin[axis] += first;
    std::uint64_t taken = 0;
    if (inside == 0 && left >= row) {
      slice.size[axis] = left / row;
      taken = slice.size[axis] * row;
      wanted.push_back(
          {&tensor, slice, out.subspan(done * width, taken * width)});
    } else {
      slice.size[axis] = 1;
      taken = std::min(left, row - inside);
      read_range(
          tensor,
          slice,
          axis + 1,
          inside,
          taken,
          out.subspan(done * width, taken * width),
          wanted);
    }
    done += taken;
  }
}

// Whether the tensor of that name in a file is the slice, or contains it among
// its rows.
bool holds(const safetensors::Shape& in_file, const SavedBox& saved) {
  const safetensors::Shape& size = saved.box.size;
  if (!saved.row) return in_file == size;
  return !size.empty() && in_file.size() == size.size() &&
      std::equal(in_file.begin() + 1, in_file.end(), size.begin() + 1) &&
      size[0] <= in_file[0] && *saved.row <= in_file[0] - size[0];
}

// The bytes of the rows before the slice.
std::uint64_t bytes_before(safetensors::Dtype dtype, const SavedBox& saved) {
  if (!saved.row) return 0;
  safetensors::Shape rows = saved.box.size;
  rows[0] = *saved.row;
  return *safetensors::bytes_of(dtype, rows);
}

}  // namespace

StoredTensors stored_in_checkpoint(
    const std::filesystem::path& directory,
    const SavedTensors& saved,
    const std::map<std::string, FileRecord>* records) {
  struct Opened {
    std::shared_ptr<const InputFile> file;
    safetensors::Header header;
  };
  std::map<std::string, Opened> files;
  const auto open = [&](const std::string& name) -> const Opened& {
    const auto found = files.find(name);
    if (found != files.end()) return found->second;
    const safetensors::Reader reader(directory / name);
    std::optional<FileRecord> record;
    if (records != nullptr) record = records->at(name);
    return files
        .emplace(
            name,
            Opened{
                std::make_shared<InputFile>(
                    directory / name, std::move(record)),
                reader.header()})
        .first->second;
  };
  StoredTensors stored;
  for (const auto& [name, tensor] : saved) {
    StoredTensor& one = stored[name];
    one.dtype = tensor.dtype;
    one.shape = tensor.shape;
    for (const SavedBox& saved_box : tensor.boxes) {
      const Opened& opened = open(saved_box.file);
      const auto info = opened.header.tensors.find(name);
      if (info == opened.header.tensors.end() ||
          info->second.dtype != tensor.dtype ||
          !holds(info->second.shape, saved_box)) {
        throw CheckpointError(format(
            "[checkpoint] {} is damaged: its \"{}\" contradicts the manifest",
            (directory / saved_box.file).string(),
            printable(name)));
      }
      one.boxes.push_back(
          {opened.file,
           opened.header.data_begin + info->second.begin +
               bytes_before(tensor.dtype, saved_box),
           saved_box.box});
    }
  }
  return stored;
}

void share_files(const StoredTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    for (const StoredBox& box : tensor.boxes) box.file->set_shared();
  }
}

void show_reads(
    const StoredTensors& tensors,
    const std::shared_ptr<ByteProgress>& progress) {
  for (const auto& [name, tensor] : tensors) {
    for (const StoredBox& box : tensor.boxes) box.file->set_progress(progress);
  }
}

std::uint64_t num_stored_bytes(const StoredTensors& tensors) {
  std::uint64_t num_bytes = 0;
  for (const auto& [name, tensor] : tensors)
    num_bytes += safetensors::bytes_of(tensor.dtype, tensor.shape).value_or(0);
  return num_bytes;
}

StoredTensors stored_in_safetensors(const std::filesystem::path& path) {
  const safetensors::Reader reader(path);
  const auto file = std::make_shared<InputFile>(path);
  StoredTensors stored;
  for (const auto& [name, info] : reader.header().tensors) {
    stored[name] = {
        info.dtype,
        info.shape,
        {{file,
          reader.header().data_begin + info.begin,
          {Shape(info.shape.size(), 0), info.shape}}}};
  }
  return stored;
}

TensorToWrite to_write(const StoredTensor& tensor) {
  TensorToWrite wanted{tensor.dtype, tensor.shape, {}};
  wanted.bytes.num_bytes =
      safetensors::bytes_of(tensor.dtype, tensor.shape).value_or(0);
  wanted.bytes.copy = [tensor](std::uint64_t begin, std::span<std::byte> out) {
    if (tensor.boxes.size() == 1 && !tensor.boxes.front().strides) {
      tensor.boxes.front().file->read_at(
          tensor.boxes.front().offset + begin, out);
      return;
    }
    const auto width =
        static_cast<std::uint64_t>(safetensors::bits_of(tensor.dtype)) / 8;
    const Box full{Shape(tensor.shape.size(), 0), tensor.shape};
    std::vector<BoxToRead> boxes;
    read_range(tensor, full, 0, begin / width, out.size() / width, out, boxes);
    read_boxes(boxes);
  };
  return wanted;
}

}  // namespace accelerate::detail
