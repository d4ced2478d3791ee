#include "support/wandb_reader.h"

#include <zlib.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include <protozero/pbf_reader.hpp>

namespace accelerate::testing {

namespace {

using nlohmann::json;
using protozero::pbf_reader;

constexpr std::size_t kBlock = 32768;
constexpr std::size_t kHeader = 7;

void require(bool holds, const std::string& complaint) {
  if (!holds) throw std::runtime_error(complaint);
}

template <class Number>
Number number_at(std::string_view bytes, std::size_t offset) {
  Number number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

// JSON has no NaN or infinities.
json parse_value(const std::string& text) {
  if (text == "NaN" || text == "Infinity" || text == "-Infinity") return text;
  return json::parse(text);
}

// Config, summary and history are lists of items with the same fields.
void read_item(pbf_reader item, json& tree) {
  std::vector<std::string> names;
  std::string value;
  while (item.next()) {
    switch (item.tag()) {
      case 1:
      case 2:
        names.push_back(item.get_string());
        break;
      case 16:
        value = item.get_string();
        break;
      default:
        item.skip();
    }
  }
  json* node = &tree;
  for (const std::string& name : names) node = &(*node)[name];
  *node = parse_value(value);
}

void read_items(pbf_reader message, json& tree) {
  while (message.next(1)) read_item(message.get_message(), tree);
}

void read_run(pbf_reader message, WandbRun& run) {
  while (message.next()) {
    switch (message.tag()) {
      case 1:
        run.run_id = message.get_string();
        break;
      case 2:
        run.entity = message.get_string();
        break;
      case 3:
        run.project = message.get_string();
        break;
      case 4:
        read_items(message.get_message(), run.config);
        break;
      case 6:
        run.group = message.get_string();
        break;
      case 7:
        run.job_type = message.get_string();
        break;
      case 8:
        run.name = message.get_string();
        break;
      case 9:
        run.notes = message.get_string();
        break;
      case 10:
        run.tags.push_back(message.get_string());
        break;
      default:
        message.skip();
    }
  }
}

void read_files(pbf_reader message, WandbRun& run) {
  while (message.next(1)) {
    pbf_reader item = message.get_message();
    while (item.next(1)) run.files.push_back(item.get_string());
  }
}

void read_record(pbf_reader record, WandbRun& run) {
  while (record.next()) {
    switch (record.tag()) {
      case 1:
        require(
            record.get_int64() == ++run.num_records,
            "a record has another's number");
        break;
      case 2:
        read_items(
            record.get_message(), run.history.emplace_back(json::object()));
        break;
      case 3:
        read_items(record.get_message(), run.summary);
        break;
      case 5:
        read_items(record.get_message(), run.config);
        break;
      case 6:
        read_files(record.get_message(), run);
        break;
      case 17:
        read_run(record.get_message(), run);
        break;
      case 18:
        run.has_ended = true;
        record.skip();
        break;
      default:
        record.skip();
    }
  }
}

}  // namespace

std::vector<std::string> read_wandb_records(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  require(bytes.starts_with(":W&B\xe1\xbe"), "not a file of W&B");
  std::vector<std::string> records;
  std::string record;
  bool is_inside = false;  // has begun, perhaps with a fragment of no bytes
  std::size_t place = kHeader;
  while (place < bytes.size()) {
    const std::size_t left = kBlock - place % kBlock;
    if (left < kHeader) {
      place += left;
      continue;
    }
    const std::string at = path.string() + ", byte " + std::to_string(place);
    require(place + kHeader <= bytes.size(), at + ": the file ends here");
    const std::size_t length = number_at<std::uint16_t>(bytes, place + 4);
    const char type = bytes[place + 6];
    require(kHeader + length <= left, at + ": a fragment leaves its block");
    require(place + kHeader + length <= bytes.size(), at + ": the file ends");
    const auto* const checked =
        reinterpret_cast<const Bytef*>(bytes.data() + place + 6);
    require(
        ::crc32(0, checked, static_cast<uInt>(length + 1)) ==
            number_at<std::uint32_t>(bytes, place),
        at + ": the checksum is wrong");
    const bool is_first = type == 1 || type == 2;
    require(
        type >= 1 && type <= 4 && is_first != is_inside,
        at + ": a fragment is out of order");
    record.append(bytes, place + kHeader, length);
    is_inside = type == 2 || type == 3;
    if (!is_inside) {
      records.push_back(std::move(record));
      record.clear();
    }
    place += kHeader + length;
  }
  return records;
}

WandbRun read_wandb_run(const std::filesystem::path& path) {
  WandbRun run;
  for (const std::string& record : read_wandb_records(path))
    read_record(pbf_reader(record), run);
  return run;
}

}  // namespace accelerate::testing
