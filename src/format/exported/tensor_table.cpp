#include "format/exported/tensor_table.h"

#include <limits>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/limits.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "format/exported/argument_parser.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;

class TensorParser {
 public:
  TensorParser(const ExportedFile& contents_of, const std::string& archive)
      : contents_of_(contents_of), archive_(archive) {}

  ExportedTensor parse(const std::string& name, const Json& entry) {
    name_ = name;
    if (name.size() > kMostNameBytes) fail("its name is too long");
    if (entry.at("use_pickle").get<bool>()) {
      refuse("it is pickled, which tensor subclasses and script objects are");
    }
    const Json& meta = entry.at("tensor_meta");
    ExportedTensor tensor;
    tensor.file = entry.at("path_name").get<std::string>();
    tensor.is_parameter = entry.at("is_param").get<bool>();
    tensor.requires_grad = meta.at("requires_grad").get<bool>();
    const std::int64_t dtype = exported_integer(meta.at("dtype"));
    const auto known = exported_dtype(dtype);
    if (!known) refuse(format("its dtype has the number {}", dtype));
    tensor.dtype = *known;
    constexpr std::int64_t kStrided = 7;
    if (exported_integer(meta.at("layout")) != kStrided) {
      refuse("it is not dense");
    }
    tensor.sizes = numbers_in(meta.at("sizes"));
    tensor.strides = numbers_in(meta.at("strides"));
    tensor.offset = exported_integer(meta.at("storage_offset").at("as_int"));
    tensor.bytes = contents_of_(tensor.file);
    check_extent(tensor);
    return tensor;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(format(
        "[exported] '{}' of {} cannot be read: {}",
        printable(name_),
        archive_,
        what));
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(format(
        "[exported] '{}' of {} is not supported: {}",
        printable(name_),
        archive_,
        what));
  }

  [[nodiscard]] std::vector<std::int64_t> numbers_in(const Json& list) const {
    std::vector<std::int64_t> numbers;
    if (list.size() > kMostDimensions) fail("it has too many dimensions");
    for (const Json& item : list) {
      numbers.push_back(exported_integer(item.at("as_int")));
      if (numbers.back() < 0) fail("a size or stride is negative");
    }
    return numbers;
  }

  // Indices of elements must not overflow, and must lie inside the file, if
  // present.
  void check_extent(const ExportedTensor& tensor) const {
    if (tensor.sizes.size() != tensor.strides.size() || tensor.offset < 0) {
      fail("its sizes, strides and offset do not fit together");
    }
    std::int64_t count = 1;
    std::int64_t end = tensor.offset;
    bool fits = true;
    for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
      std::int64_t reach = 0;
      const std::int64_t size = tensor.sizes[i];
      fits = fits && !__builtin_mul_overflow(count, size, &count) &&
          !__builtin_mul_overflow(
                 size > 0 ? size - 1 : 0, tensor.strides[i], &reach) &&
          !__builtin_add_overflow(end, reach, &end);
    }
    const std::int64_t limit = std::numeric_limits<std::int64_t>::max() /
        static_cast<std::int64_t>(sizeof(double) * 2);
    if (!fits || count > limit || end >= limit) fail("it is too large");
    if (!tensor.bytes || count == 0) return;
    const std::size_t available =
        tensor.bytes->size() / element_bytes(tensor.dtype);
    if (static_cast<std::size_t>(end) >= available) {
      fail(format(
          "it reaches to element {} of its file '{}', which has only {}",
          end,
          printable(tensor.file),
          available));
    }
    // With strides of 0, a small file could describe any number of elements.
    constexpr std::uint64_t kRepeats = 8;
    constexpr std::uint64_t kSlack = std::uint64_t{8} << 20U;
    const std::uint64_t num_bytes =
        static_cast<std::uint64_t>(count) * element_bytes(tensor.dtype);
    if (num_bytes > kRepeats * tensor.bytes->size() + kSlack) {
      fail(format("it repeats its file to {} bytes", num_bytes));
    }
  }

  const ExportedFile& contents_of_;
  std::string archive_;
  std::string name_;
};

}  // namespace

ExportedTensors parse_tensor_table(
    std::string_view text,
    const ExportedFile& contents_of,
    const std::string& name) {
  const ParsedJson parsed = parse_json(text);
  std::string complaint = parsed.complaint;
  if (complaint.empty()) {
    try {
      ExportedTensors tensors;
      TensorParser parser(contents_of, name);
      for (const auto& [key, entry] : parsed.value.at("config").items()) {
        tensors.emplace(key, parser.parse(key, entry));
      }
      return tensors;
    } catch (const Json::exception& error) {
      complaint = json_complaint(error);
    }
  }
  throw CheckpointError(format(
      "[exported] the tensors of {} cannot be read: {}", name, complaint));
}

}  // namespace accelerate::detail
