#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include <accelerate/error.h>
#include <accelerate/safetensors.h>

#include "base/limits.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "format/safetensors/header_format.h"

namespace accelerate::safetensors {

namespace {

using detail::format;
using detail::printable;

// Parses a header as it is read: nothing unwanted is built, so the cost of a
// hostile file is bounded by its size.
class HeaderReader {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit HeaderReader(Header& header) : header_(header) {}
  [[nodiscard]] const std::string& complaint() const { return complaint_; }

  bool null() {
    if (place_ != Place::header || !has_key_ || name_ != kMetadata)
      return wrong("null");
    has_key_ = false;
    return true;
  }
  bool boolean(bool) { return wrong("a truth value"); }
  bool number_integer(number_integer_t) { return wrong("a negative number"); }
  bool number_float(number_float_t, const string_t&) {
    return wrong("a number is fractional, or beyond 64 bits");
  }
  bool binary(binary_t&) { return wrong("bytes"); }
  bool number_unsigned(number_unsigned_t value) {
    if (place_ != Place::shape && place_ != Place::offsets) {
      return wrong("a number");
    }
    if (place_ == Place::shape) {
      if (tensor_.shape.size() == detail::kMostDimensions) {
        return fail(format(
            "its shape has more than {} dimensions", detail::kMostDimensions));
      }
      tensor_.shape.push_back(value);
      return true;
    }
    if (num_offsets_ >= 2) return fail("data_offsets has more than two values");
    (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    return true;
  }
  bool string(string_t& text) {
    if (place_ == Place::metadata && has_key_) {
      header_.metadata.emplace(key_, std::move(text));
      has_key_ = false;
      return true;
    }
    if (place_ != Place::tensor || field_ != Field::dtype) {
      return wrong("a string");
    }
    const std::optional<Dtype> dtype = parse_dtype(text);
    if (!dtype) return fail(format("dtype '{}' is not known", printable(text)));
    tensor_.dtype = *dtype;
    field_ = Field::none;
    return true;
  }

  bool start_object(std::size_t) {
    if (place_ == Place::outside) {
      place_ = Place::header;
      return true;
    }
    if (place_ != Place::header || !has_key_) return wrong("an object");
    has_key_ = false;
    if (name_ == kMetadata) {
      header_.has_metadata = true;
      place_ = Place::metadata;
    } else {
      place_ = Place::tensor;
      tensor_ = {};
      seen_.clear();
      num_offsets_ = 0;
    }
    return true;
  }
  bool key(string_t& text) {
    if (place_ == Place::header) {
      const bool is_new = text == kMetadata ? !header_.has_metadata
                                            : !header_.tensors.contains(text);
      name_ = std::move(text);
      has_key_ = true;
      return is_new || fail("it is given twice");
    }
    if (place_ == Place::metadata) {
      if (header_.metadata.contains(text)) {
        return fail(format("key '{}' occurs twice", printable(text)));
      }
      key_ = std::move(text);
      has_key_ = true;
      return true;
    }
    field_ = text == "dtype"     ? Field::dtype
        : text == "shape"        ? Field::shape
        : text == "data_offsets" ? Field::offsets
                                 : Field::none;
    if (field_ == Field::none) {
      return fail(format("field '{}' is not known", printable(text)));
    }
    return seen_.insert(field_).second ||
        fail(format("field '{}' occurs twice", text));
  }
  bool end_object() {
    if (place_ == Place::header) {
      place_ = Place::outside;
      return true;
    }
    if (place_ == Place::tensor) {
      if (seen_.size() != 3) {
        return fail("it lacks one of dtype, shape and data_offsets");
      }
      header_.tensors.emplace(name_, std::move(tensor_));
    }
    place_ = Place::header;
    return true;
  }
  bool start_array(std::size_t) {
    if (place_ != Place::tensor) return wrong("a list");
    if (field_ == Field::shape) {
      place_ = Place::shape;
    } else if (field_ == Field::offsets) {
      place_ = Place::offsets;
    } else {
      return wrong("a list");
    }
    return true;
  }
  bool end_array() {
    if (place_ == Place::offsets && num_offsets_ != 2) {
      return fail("data_offsets has fewer than two values");
    }
    place_ = Place::tensor;
    field_ = Field::none;
    return true;
  }
  bool parse_error(
      std::size_t,
      const std::string&,
      const nlohmann::json::exception& error) {
    complaint_ = detail::json_complaint(error);
    return false;
  }

 private:
  enum class Place { outside, header, metadata, tensor, shape, offsets };
  enum class Field { none, dtype, shape, offsets };

  bool fail(const std::string& what) {
    complaint_ = name_.empty() && place_ != Place::tensor
        ? what
        : format("'{}': {}", printable(name_), what);
    return false;
  }
  bool wrong(std::string_view found) {
    return fail(format("{} is in a wrong place", found));
  }

  Header& header_;
  std::string complaint_;
  Place place_ = Place::outside;
  /// State of the current entry.
  std::string name_;
  TensorInfo tensor_;
  Field field_ = Field::none;
  std::set<Field> seen_;
  int num_offsets_ = 0;
  /// Key in the metadata or in an entry, waiting for its value.
  std::string key_;
  bool has_key_ = false;
};

[[noreturn]] void refuse_file(
    const std::string& name,
    const std::string& what) {
  throw CheckpointError(
      format("[safetensors] {} is not a valid file: {}", name, what));
}

std::uint64_t checked_header_length(
    std::span<const std::byte> start,
    std::uint64_t file_size,
    const std::string& name) {
  if (file_size < kLengthBytes || start.size() < kLengthBytes) {
    refuse_file(
        name, format("it has {} bytes, too few for a header", file_size));
  }
  const std::uint64_t length = header_length(start.first<kLengthBytes>());
  if (length > kMostHeaderBytes) {
    refuse_file(
        name,
        format(
            "its header would have {} bytes, but at most {} are read",
            length,
            kMostHeaderBytes));
  }
  if (length > file_size - kLengthBytes ||
      length > start.size() - kLengthBytes) {
    refuse_file(
        name,
        format(
            "its header would have {} bytes, more than "
            "the file has: it is torn",
            length));
  }
  return length;
}

std::string_view checked_json(
    std::span<const std::byte> bytes,
    const std::string& name) {
  std::string_view text(
      reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text = text.substr(0, text.find_last_not_of(" \n\r\t") + 1);
  if (!text.starts_with('{') || !text.ends_with('}')) {
    refuse_file(
        name, "its header is not a JSON object followed by blanks at most");
  }
  return text;
}

// Throws unless the tensors cover all `data_size` bytes without holes or
// overlaps.
void check_tensors_cover(
    const Header& header,
    std::uint64_t data_size,
    const std::string& name) {
  std::uint64_t covered = 0;
  for (const std::string& tensor : names_in_order(header)) {
    const TensorInfo& info = header.tensors.at(tensor);
    if (info.begin != covered || info.end < info.begin) {
      refuse_file(
          name,
          format(
              "the data of '{}' is from {} to {}, but the tensor before it "
              "ends at {}: a hole, an overlap, or swapped bounds",
              printable(tensor),
              info.begin,
              info.end,
              covered));
    }
    const auto bytes = bytes_of(info.dtype, info.shape);
    if (!bytes || *bytes != info.num_bytes()) {
      refuse_file(
          name,
          format(
              "'{}' has {} bytes, which do not match its shape and dtype",
              printable(tensor),
              info.num_bytes()));
    }
    covered = info.end;
  }
  if (covered != data_size) {
    refuse_file(
        name,
        format(
            "its tensors take {} bytes, but {} follow the header: it is torn, "
            "or something was appended",
            covered,
            data_size));
  }
}

}  // namespace

std::vector<std::string> names_in_order(const Header& header) {
  using Entry = std::map<std::string, TensorInfo>::value_type;
  std::vector<const Entry*> entries;
  for (const Entry& entry : header.tensors) entries.push_back(&entry);
  // Empty tensors may share an offset; then the writer's order decides.
  const auto place_of = [](const Entry* entry) {
    const TensorInfo& info = entry->second;
    return std::tuple(info.begin, info.end, -static_cast<int>(info.dtype));
  };
  std::ranges::stable_sort(entries, [&](const Entry* a, const Entry* b) {
    return place_of(a) < place_of(b);
  });
  std::vector<std::string> names;
  for (const Entry* entry : entries) names.push_back(entry->first);
  return names;
}

std::uint64_t header_length(std::span<const std::byte, kLengthBytes> start) {
  std::uint64_t length = 0;
  // Little-endian.
  for (std::size_t i = start.size(); i-- > 0;)
    length = length << 8 | std::to_integer<std::uint64_t>(start[i]);
  return length;
}

Header parse_header(
    std::span<const std::byte> start,
    std::uint64_t file_size,
    const std::string& name) {
  const std::uint64_t length = checked_header_length(start, file_size, name);
  Header header;
  header.data_begin = kLengthBytes + length;
  HeaderReader reader(header);
  const std::string_view json =
      checked_json(start.subspan(kLengthBytes, length), name);
  if (!nlohmann::json::sax_parse(json, &reader)) {
    refuse_file(name, format("its header is wrong: {}", reader.complaint()));
  }
  check_tensors_cover(header, file_size - header.data_begin, name);
  return header;
}

}  // namespace accelerate::safetensors
