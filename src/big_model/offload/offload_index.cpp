#include "big_model/offload/offload_index.h"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/json_text.h"
#include "base/text/text.h"
#include "format/journal/journal_json.h"

namespace accelerate {

OffloadIndex::OffloadIndex(Entries entries) {
  for (auto& [name, weight] : entries)
    if (find(name) == nullptr) set(name, std::move(weight));
}

void OffloadIndex::set(const std::string& name, OffloadedWeight weight) {
  const auto [place, is_new] = places_.emplace(name, entries_.size());
  if (is_new) {
    entries_.emplace_back(name, std::move(weight));
  } else {
    entries_[place->second].second = std::move(weight);
  }
}

const OffloadedWeight* OffloadIndex::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &entries_[found->second].second;
}

namespace detail {

namespace {

// Keeps the order of keys, as Python does.
using OrderedJson = nlohmann::ordered_json;

constexpr int kChecksumsVersion = 1;

[[noreturn]] void fail_index(
    const std::string& name,
    const std::string& complaint) {
  throw CheckpointError(format(
      "[big_model] {} is not an index of offloaded weights: {}",
      name,
      complaint));
}

OffloadedWeight parse_entry(
    const OrderedJson& json,
    const std::string& weight,
    const std::string& name) {
  const auto complain = [&](const char* what) {
    fail_index(name, format("{} of \"{}\"", what, printable(weight)));
  };
  OffloadedWeight entry;
  if (!json.is_object()) complain("an object is missing in the entry");
  const auto text_of = [&](const char* key) -> std::string {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) return {};
    if (!found->is_string()) complain("a field that must be a string is not:");
    return found->get<std::string>();
  };
  entry.dtype = text_of("dtype");
  entry.safetensors_file = text_of("safetensors_file");
  entry.weight_name = text_of("weight_name");
  if (!entry.safetensors_file.empty()) return entry;
  const auto shape = json.find("shape");
  if (entry.dtype.empty() || shape == json.end() || !shape->is_array())
    complain("dtype or shape is missing in the entry");
  for (const OrderedJson& size : *shape) {
    if (!size.is_number_unsigned())
      complain("a size in the shape is not a number");
    entry.shape.push_back(size.get<std::int64_t>());
  }
  return entry;
}

}  // namespace

std::string offload_index_text(const OffloadIndex& index) {
  OrderedJson json = OrderedJson::object();
  JsonMembers members;
  for (const auto& [name, weight] : index.entries()) {
    OrderedJson entry = OrderedJson::object();
    if (weight.safetensors_file.empty()) {
      entry["dtype"] = weight.dtype;
      entry["shape"] = weight.shape;
    } else {
      entry["safetensors_file"] = weight.safetensors_file.string();
      entry["weight_name"] =
          weight.weight_name.empty() ? name : weight.weight_name;
      if (!weight.dtype.empty()) entry["dtype"] = weight.dtype;
    }
    members.of(json, name) = std::move(entry);
  }
  return json.dump(2, ' ', /*ensure_ascii=*/true);
}

OffloadIndex parse_offload_index(
    std::string_view text,
    const std::string& name) {
  const ParsedJson parsed = parse_json(text);
  if (!parsed.complaint.empty()) fail_index(name, parsed.complaint);
  if (!parsed.value.is_object()) fail_index(name, "it is not a JSON object");
  const OrderedJson json = *parse_journal_json(text);
  OffloadIndex index;
  for (const auto& [weight, entry] : json.items())
    index.set(weight, parse_entry(entry, weight, name));
  return index;
}

std::string offload_checksums_text(
    const std::map<std::string, FileRecord>& records) {
  nlohmann::json weights = nlohmann::json::object();
  for (const auto& [name, record] : records) {
    nlohmann::json checksums = nlohmann::json::array();
    for (const std::uint64_t checksum : record.checksums) {
      char text[17];
      std::snprintf(
          text,
          sizeof text,
          "%016llx",
          static_cast<unsigned long long>(checksum));
      checksums.push_back(text);
    }
    weights[name] = {{"bytes", record.num_bytes}, {"xxh3_64", checksums}};
  }
  return nlohmann::json{{"version", kChecksumsVersion}, {"weights", weights}}
      .dump(1, ' ', /*ensure_ascii=*/true);
}

std::map<std::string, FileRecord> parse_offload_checksums(
    std::string_view text) {
  const ParsedJson parsed = parse_json(text);
  std::map<std::string, FileRecord> records;
  try {
    if (parsed.value.at("version") != kChecksumsVersion) return {};
    for (const auto& [name, entry] : parsed.value.at("weights").items()) {
      FileRecord record;
      record.num_bytes = entry.at("bytes").get<std::uint64_t>();
      for (const auto& checksum : entry.at("xxh3_64")) {
        record.checksums.push_back(
            std::stoull(checksum.get<std::string>(), nullptr, 16));
      }
      if (record.checksums.size() !=
          (record.num_bytes + kChunkBytes - 1) / kChunkBytes) {
        return {};
      }
      records.emplace(name, std::move(record));
    }
  } catch (const std::exception&) {
    return {};
  }
  return records;
}

}  // namespace detail

}  // namespace accelerate
