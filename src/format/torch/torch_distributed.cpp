#include "format/torch/torch_distributed.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/limits.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "format/tensors/box_cover.h"
#include "format/torch/pickle_reader.h"
#include "format/torch/torch_file.h"

namespace accelerate::detail {

namespace {

using safetensors::Shape;
using Value = Pickle::Value;

constexpr const char* kMetadata = ".metadata";

// A safetensors file inside another file.
struct SafetensorsInside {
  std::uint64_t offset = 0;
  safetensors::Header header;
  std::map<std::string, Shape> offsets;
};

struct Opened {
  std::shared_ptr<InputFile> file;
  /// Number of bytes of the shards read so far.
  std::uint64_t num_read = 0;
  std::optional<SafetensorsInside> safetensors = std::nullopt;
};

class MetadataReader {
 public:
  explicit MetadataReader(const std::filesystem::path& directory)
      : directory_(directory),
        where_((directory / kMetadata).string()),
        text_(read_file(directory / kMetadata)),
        pickle_(
            std::as_bytes(std::span(text_)),
            where_,
            // Leaves room for the shapes, offsets and names of each shard.
            (std::size_t{1} << 20) + 64 * text_.size()) {}

  TorchDistributed read() {
    const Value root = pickle_.root().as_dict();
    const Value tensors = member(root, "state_dict_metadata");
    TorchDistributed found;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string name = name_in(tensors.key(i));
      const Value what = tensors.value(i);
      if (!ends_with(what, "TensorStorageMetadata")) {
        found.others.push_back(name);
        continue;
      }
      found.tensors.emplace(name, describe(name, what.as_dict()))
          .first->second.place = i + 1;
    }
    place(member(root, "storage_data"), found.tensors);
    for (const auto& [name, boxes] : unplaced_) {
      if (!boxes.empty()) {
        fail(format("a shard of \"{}\" is in no file", printable(name)));
      }
    }
    strip_top(root, found);
    return found;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw CheckpointError(format("[torch] {}: {}", where_, what));
  }

  [[nodiscard]] Value member(const Value& dict, std::string_view key) const {
    for (std::size_t i = 0; i < dict.size(); ++i) {
      if (dict.key(i).kind() == Pickle::Kind::text &&
          dict.key(i).text() == key) {
        return dict.value(i);
      }
    }
    fail(format("\"{}\" is missing", key));
  }

  [[nodiscard]] std::string name_in(const Value& value) const {
    const std::string_view name = value.text();
    if (name.size() > kMostNameBytes) {
      fail(format(
          "the name {} has {} bytes, but at most {} are read",
          printable(name.substr(0, kMostNameBytes)),
          name.size(),
          kMostNameBytes));
    }
    return std::string(name);
  }

  static bool ends_with(const Value& value, std::string_view class_name) {
    return value.kind() == Pickle::Kind::call &&
        value.item(0).text().ends_with(class_name);
  }

  // Reads a torch.Size.
  [[nodiscard]] Shape sizes(const Value& value) const {
    const Value items =
        value.kind() == Pickle::Kind::call ? value.item(1).item(0) : value;
    Shape shape;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::int64_t size = items.item(i).integer();
      if (size < 0) fail("a size is negative");
      shape.push_back(static_cast<std::uint64_t>(size));
    }
    if (shape.size() > kMostDimensions) {
      fail(format(
          "a shape of {} dimensions; at most {} are read",
          shape.size(),
          kMostDimensions));
    }
    return shape;
  }

  StoredTensor describe(const std::string& name, const Value& dict) {
    StoredTensor tensor;
    const Value properties = member(dict, "properties");
    // The state of properties is a tuple that begins with the dtype; in older
    // versions it is a dict.
    const Value state = properties.item(2);
    const Value dtype = state.kind() == Pickle::Kind::dict
        ? member(state, "dtype")
        : state.item(0);
    const auto known = torch_dtype_of(dtype);
    if (!known) {
      fail(format(
          "a dtype that safetensors lacks: {}", printable(dtype.text())));
    }
    tensor.dtype = *known;
    tensor.shape = sizes(member(dict, "size"));
    if (!safetensors::bytes_of(tensor.dtype, tensor.shape)) {
      fail(format("the size of \"{}\" is impossible", printable(name)));
    }
    const Value chunks = member(dict, "chunks");
    std::set<std::pair<Shape, Shape>> seen;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const Value chunk = chunks.item(i).as_dict();
      StoredBox box;
      box.box = {
          sizes(member(chunk, "offsets")), sizes(member(chunk, "sizes"))};
      // Old planners list a shard held by several ranks once for each rank.
      if (!seen.emplace(box.box.begin, box.box.size).second) continue;
      tensor.boxes.push_back(std::move(box));
    }
    std::vector<const safetensors::Box*> boxes;
    for (const StoredBox& each : tensor.boxes) boxes.push_back(&each.box);
    const auto complaint =
        complaint_of_boxes(tensor.shape, boxes, /*must_cover=*/true);
    if (complaint) fail(format("\"{}\": {}", printable(name), *complaint));
    // Uneven sharding leaves empty shards.
    std::erase_if(tensor.boxes, [&](const StoredBox& each) {
      return *safetensors::bytes_of(tensor.dtype, each.box.size) == 0;
    });
    return tensor;
  }

  // Finds each shard in its file.
  void place(const Value& storage, StoredTensors& tensors) {
    for (auto& [name, tensor] : tensors) {
      std::map<Shape, StoredBox*>& unplaced = unplaced_[name];
      for (StoredBox& box : tensor.boxes) unplaced[box.box.begin] = &box;
    }
    for (std::size_t i = 0; i < storage.size(); ++i) {
      const Value index = storage.key(i).as_dict();
      const Value info = storage.value(i).as_dict();
      const std::string name = name_in(member(index, "fqn"));
      const auto tensor = tensors.find(name);
      if (tensor == tensors.end()) continue;
      std::map<Shape, StoredBox*>& unplaced = unplaced_[name];
      const auto box = unplaced.find(sizes(member(index, "offset")));
      if (box == unplaced.end()) continue;
      const std::int64_t offset = member(info, "offset").integer();
      const std::int64_t length = member(info, "length").integer();
      if (offset < 0 || length < 0)
        fail("an offset or length in a file is negative");
      locate(
          *tensor,
          *box->second,
          name_in(member(info, "relative_path")),
          static_cast<std::uint64_t>(offset),
          static_cast<std::uint64_t>(length));
      unplaced.erase(box);
    }
  }

  void locate(
      const StoredTensors::value_type& tensor,
      StoredBox& box,
      const std::string& name,
      std::uint64_t offset,
      std::uint64_t length) {
    if (name.find('/') != std::string::npos || name == "..") {
      fail(
          format("it names a file outside its directory: {}", printable(name)));
    }
    Opened& opened = files_[name];
    if (!opened.file)
      opened.file = std::make_shared<InputFile>(directory_ / name);
    const auto all = opened.file->bytes();
    if (offset > all.size() || length > all.size() - offset) {
      fail(format("{} is shorter than it should be", printable(name)));
    }
    // Shards follow one another, so each byte belongs to one shard.
    if (length > all.size() - opened.num_read) {
      fail(format("shards in {} overlap", printable(name)));
    }
    opened.num_read += length;
    box.file = opened.file;
    const auto bytes = all.subspan(offset);
    const auto where = is_torch_file(bytes)
        ? find_in_torch_file(bytes.first(length), tensor.second, box, offset)
        : find_in_safetensors(opened, tensor.first, tensor.second, box, offset);
    if (!where) {
      fail(format("a shard in {} differs from its metadata", printable(name)));
    }
    box.offset = offset + *where;
  }

  // Each shard is a complete torch.save file inside another file. Returns where
  // its bytes begin.
  static std::optional<std::uint64_t> find_in_torch_file(
      std::span<const std::byte> bytes,
      const StoredTensor& tensor,
      const StoredBox& box,
      std::uint64_t offset) {
    const TorchFile saved(
        bytes, format("{} at {}", box.file->path().string(), offset));
    const auto shard = saved.tensor(saved.root());
    if (!shard || shard->dtype != tensor.dtype ||
        shard->sizes != box.box.size || !shard->is_contiguous() ||
        shard->hidden_bits.any()) {
      return std::nullopt;
    }
    const auto width =
        static_cast<std::uint64_t>(safetensors::bits_of(tensor.dtype)) / 8;
    return saved.place_of(*shard) + shard->offset * width;
  }

  // All shards of a file are in one safetensors file at its end, which keeps
  // only the last of several shards of one tensor.
  std::optional<std::uint64_t> find_in_safetensors(
      Opened& opened,
      const std::string& name,
      const StoredTensor& tensor,
      const StoredBox& box,
      std::uint64_t offset) const {
    if (!opened.safetensors) {
      const auto bytes = opened.file->bytes().subspan(offset);
      const safetensors::Header header = safetensors::parse_header(
          bytes, bytes.size(), opened.file->path().string());
      opened.safetensors.emplace(
          SafetensorsInside{offset, header, offsets_in(header)});
    }
    const SafetensorsInside& inside = *opened.safetensors;
    const auto info = inside.header.tensors.find(name);
    const auto begin = inside.offsets.find(name);
    if (inside.offset != offset || info == inside.header.tensors.end() ||
        info->second.dtype != tensor.dtype ||
        info->second.shape != box.box.size || begin == inside.offsets.end() ||
        begin->second != box.box.begin) {
      return std::nullopt;
    }
    return inside.header.data_begin + info->second.begin;
  }

  // Where the shards in a safetensors file begin in their tensors.
  static std::map<std::string, Shape> offsets_in(
      const safetensors::Header& header) {
    std::map<std::string, Shape> offsets;
    const auto found = header.metadata.find("DCP_SHARDING_INFO");
    if (found == header.metadata.end()) return offsets;
    const ParsedJson parsed = parse_json(found->second);
    if (!parsed.value.is_object()) return offsets;
    for (const auto& [name, info] : parsed.value.items()) {
      const auto begin = info.find("saved_offsets");
      if (begin == info.end() || !begin->is_array()) continue;
      Shape& shape = offsets[name];
      for (const auto& size : *begin) {
        if (!size.is_number_unsigned()) return {};
        shape.push_back(size.get<std::uint64_t>());
      }
    }
    return offsets;
  }

  // A single key around everything is not part of the names, as in Accelerate's
  // merge. planner_data lists the components of each name.
  void strip_top(const Value& root, TorchDistributed& found) const {
    std::optional<Value> paths;
    for (std::size_t i = 0; i < root.size(); ++i) {
      if (root.key(i).text() == "planner_data") paths = root.value(i);
    }
    if (!paths || paths->kind() != Pickle::Kind::dict) return;
    StoredTensors stripped;
    std::optional<std::string> top;
    for (std::size_t i = 0; i < paths->size(); ++i) {
      const Value path = paths->value(i);
      if (path.size() < 2 || path.item(0).kind() != Pickle::Kind::text) return;
      const std::string first = name_in(path.item(0));
      if (top && *top != first) return;
      top = first;
      const auto tensor = found.tensors.find(name_in(paths->key(i)));
      if (tensor == found.tensors.end()) continue;
      if (!tensor->first.starts_with(format("{}.", first))) return;
      stripped.emplace(tensor->first.substr(first.size() + 1), tensor->second);
    }
    if (stripped.size() == found.tensors.size()) {
      found.tensors = std::move(stripped);
    }
  }

  std::filesystem::path directory_;
  std::string where_;
  std::string text_;
  Pickle pickle_;
  std::map<std::string, Opened> files_;
  /// Shards not found yet, by their offset in their tensor.
  std::map<std::string, std::map<Shape, StoredBox*>> unplaced_;
};

}  // namespace

bool is_torch_distributed(const std::filesystem::path& directory) {
  std::error_code code;
  return std::filesystem::is_regular_file(directory / kMetadata, code);
}

TorchDistributed read_torch_distributed(
    const std::filesystem::path& directory) {
  if (!is_torch_distributed(directory)) {
    throw CheckpointError(format(
        "[torch] {} has no .metadata: it is not a "
        "distributed checkpoint of torch",
        directory.string()));
  }
  return MetadataReader(directory).read();
}

}  // namespace accelerate::detail
