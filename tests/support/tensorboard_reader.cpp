#include "support/tensorboard_reader.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string_view>

#include <protozero/pbf_reader.hpp>

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wshadow"
#include <stb_image.h>
#pragma GCC diagnostic pop

namespace accelerate::testing {

namespace {

using protozero::pbf_reader;

std::uint32_t masked_checksum(std::string_view bytes) {
  std::uint32_t remainder = 0xffffffff;
  for (const char each : bytes) {
    remainder ^= static_cast<unsigned char>(each);
    for (int bit = 0; bit < 8; ++bit) {
      remainder =
          (remainder >> 1U) ^ ((remainder & 1U) != 0 ? 0x82f63b78U : 0U);
    }
  }
  return std::rotr(~remainder, 15) + 0xa282ead8;
}

template <class Number>
Number number_at(std::string_view bytes, std::size_t offset) {
  Number number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

void require(bool holds, const std::string& complaint) {
  if (!holds) throw std::runtime_error(complaint);
}

TensorboardImage read_image(pbf_reader message) {
  TensorboardImage image;
  while (message.next()) {
    switch (message.tag()) {
      case 1:
        image.height = message.get_int32();
        break;
      case 2:
        image.width = message.get_int32();
        break;
      case 3:
        image.colorspace = message.get_int32();
        break;
      case 4:
        image.file = message.get_bytes();
        break;
      default:
        message.skip();
    }
  }
  return image;
}

TensorboardHistogram read_histogram(pbf_reader message) {
  TensorboardHistogram histogram;
  while (message.next()) {
    switch (message.tag()) {
      case 1:
        histogram.min = message.get_double();
        break;
      case 2:
        histogram.max = message.get_double();
        break;
      case 3:
        histogram.num = message.get_double();
        break;
      case 4:
        histogram.sum = message.get_double();
        break;
      case 5:
        histogram.sum_squares = message.get_double();
        break;
      case 6: {
        const auto limits = message.get_packed_double();
        histogram.limits.assign(limits.begin(), limits.end());
        break;
      }
      case 7: {
        const auto counts = message.get_packed_double();
        histogram.counts.assign(counts.begin(), counts.end());
        break;
      }
      default:
        message.skip();
    }
  }
  return histogram;
}

void read_tensor(pbf_reader message, TensorboardValue& value) {
  while (message.next()) {
    switch (message.tag()) {
      case 5:
        for (const float number : message.get_packed_float())
          value.tensor_numbers.push_back(number);
        break;
      case 6:
        for (const double number : message.get_packed_double())
          value.tensor_numbers.push_back(number);
        break;
      case 8:
        value.tensor_texts.push_back(message.get_bytes());
        break;
      default:
        message.skip();
    }
  }
}

void read_metadata(pbf_reader message, TensorboardValue& value) {
  while (message.next(1)) {
    pbf_reader plugin = message.get_message();
    while (plugin.next()) {
      switch (plugin.tag()) {
        case 1:
          value.plugin = plugin.get_string();
          break;
        case 2:
          value.plugin_content = plugin.get_bytes();
          break;
        default:
          plugin.skip();
      }
    }
  }
}

TensorboardValue read_value(pbf_reader message) {
  TensorboardValue value;
  while (message.next()) {
    switch (message.tag()) {
      case 1:
        value.tag = message.get_string();
        break;
      case 2:
        value.scalar = message.get_float();
        break;
      case 4:
        value.image = read_image(message.get_message());
        break;
      case 5:
        value.histogram = read_histogram(message.get_message());
        break;
      case 8:
        read_tensor(message.get_message(), value);
        break;
      case 9:
        read_metadata(message.get_message(), value);
        break;
      default:
        message.skip();
    }
  }
  return value;
}

TensorboardEvent read_event(pbf_reader message) {
  TensorboardEvent event;
  while (message.next()) {
    switch (message.tag()) {
      case 1:
        event.wall_time = message.get_double();
        break;
      case 2:
        event.step = message.get_int64();
        break;
      case 3:
        event.file_version = message.get_string();
        break;
      case 5: {
        pbf_reader summary = message.get_message();
        while (summary.next(1))
          event.values.push_back(read_value(summary.get_message()));
        break;
      }
      case 7: {
        pbf_reader session = message.get_message();
        while (session.next(1))
          event.is_session_start = session.get_enum() == 1;
        break;
      }
      default:
        message.skip();
    }
  }
  return event;
}

std::pair<std::string, std::string> read_info(pbf_reader message) {
  constexpr const char* kTypes[] = {
      "DATA_TYPE_UNSET",
      "DATA_TYPE_STRING",
      "DATA_TYPE_BOOL",
      "DATA_TYPE_FLOAT64"};
  std::pair<std::string, std::string> info;
  while (message.next()) {
    switch (message.tag()) {
      case 1:
        info.first = message.get_string();
        break;
      case 4:
        info.second = kTypes[message.get_enum() & 3];
        break;
      default:
        message.skip();
    }
  }
  return info;
}

std::pair<std::string, std::variant<double, std::string>> read_entry(
    pbf_reader message) {
  std::pair<std::string, std::variant<double, std::string>> entry;
  while (message.next()) {
    if (message.tag() == 1) {
      entry.first = message.get_string();
    } else {
      pbf_reader value = message.get_message();
      while (value.next()) {
        switch (value.tag()) {
          case 2:
            entry.second = value.get_double();
            break;
          case 3:
            entry.second = value.get_string();
            break;
          default:
            value.skip();
        }
      }
    }
  }
  return entry;
}

}  // namespace

std::vector<TensorboardEvent> read_tensorboard_events(
    const std::filesystem::path& path) {
  constexpr std::size_t kLengthBytes = 8, kChecksumBytes = 4;
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<TensorboardEvent> events;
  for (std::string_view rest = bytes; !rest.empty();) {
    const std::string place =
        path.string() + ", byte " + std::to_string(bytes.size() - rest.size());
    require(rest.size() >= 16, place + ": the file ends within a frame");
    require(
        masked_checksum(rest.substr(0, kLengthBytes)) ==
            number_at<std::uint32_t>(rest, kLengthBytes),
        place + ": the length's checksum is wrong");
    const auto length = number_at<std::uint64_t>(rest, 0);
    rest.remove_prefix(kLengthBytes + kChecksumBytes);
    require(
        length + kChecksumBytes <= rest.size(),
        place + ": the file ends within a frame");
    const std::string_view event = rest.substr(0, length);
    require(
        masked_checksum(event) == number_at<std::uint32_t>(rest, length),
        place + ": the event's checksum is wrong");
    events.push_back(read_event(pbf_reader(event.data(), event.size())));
    rest.remove_prefix(length + kChecksumBytes);
  }
  return events;
}

TensorboardHparams read_tensorboard_hparams(const std::string& plugin_content) {
  TensorboardHparams result;
  pbf_reader data(plugin_content);
  while (data.next()) {
    const protozero::pbf_tag_type field = data.tag();
    if (field < 2 || field > 4) {
      data.skip();
      continue;
    }
    constexpr const char* kKinds[] = {
        "experiment", "session_start_info", "session_end_info"};
    result.kind = kKinds[field - 2];
    pbf_reader message = data.get_message();
    while (message.next()) {
      if (field == 2 && message.tag() == 4) {
        result.infos.push_back(read_info(message.get_message()));
      } else if (field == 3 && message.tag() == 1) {
        result.values.push_back(read_entry(message.get_message()));
      } else if (field == 3 && message.tag() == 5) {
        result.start_seconds = message.get_double();
      } else if (field == 4 && message.tag() == 1) {
        result.status = message.get_enum();
      } else {
        message.skip();
      }
    }
  }
  return result;
}

DecodedImage decode_image(const std::string& file) {
  DecodedImage image;
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(
          reinterpret_cast<const stbi_uc*>(file.data()),
          static_cast<int>(file.size()),
          &image.width,
          &image.height,
          &image.channels,
          0),
      stbi_image_free);
  require(pixels != nullptr, "not an image");
  image.bytes.assign(
      reinterpret_cast<const char*>(pixels.get()),
      static_cast<std::size_t>(image.width) *
          static_cast<std::size_t>(image.height) *
          static_cast<std::size_t>(image.channels));
  return image;
}

}  // namespace accelerate::testing
