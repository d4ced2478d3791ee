// Small files of every kind, compared with what Python's readers read from them
// (corpus/make_corpus.py).
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include <accelerate/datasets.h>
#include <accelerate/error.h>

#include "support/temporary_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace corpus_test {

using nlohmann::json;

std::string from_base64(const std::string& text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned value = 0;
  int num_bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    value = value << 6U | static_cast<unsigned>(kDigits.find(c));
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(value >> static_cast<unsigned>(num_bits));
  }
  return bytes;
}

// "nan", "inf" or a number in hexadecimal.
double number_of(const json& text) {
  return std::strtod(text.get<std::string>().c_str(), nullptr);
}

bool is_same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) ||
      (a == b && std::signbit(a) == std::signbit(b));
}

/// The entries of one kind of file, and the error of reading one of them.
class Corpus : public ::testing::Test {
 protected:
  static json entries(const std::string& kind) {
    std::ifstream file(
        std::string(ACCELERATE_READER_CORPUS) + "/" + kind + ".json");
    return json::parse(file);
  }
  [[nodiscard]] std::string write(
      const json& entry,
      const std::string& contents) const {
    const auto path = directory_.path() / ("file" + entry.value("ending", ""));
    std::ofstream(path, std::ios::binary) << contents;
    return path.string();
  }
  [[nodiscard]] std::string write(const json& entry) const {
    return write(entry, from_base64(entry.at("file")));
  }
  // Calls `read`, which throws ConfigError with the entry's phrase if the entry
  // is to be refused.
  template <class Read>
  static void read_or_refuse(const json& entry, const Read& read) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    try {
      read();
      EXPECT_FALSE(entry.contains("refused")) << "read";
    } catch (const ConfigError& error) {
      EXPECT_THAT(
          error.what(),
          ::testing::HasSubstr(
              entry.value("refused", "nothing to be refused")));
    }
  }

 private:
  testing::TemporaryDirectory directory_;
};

void expect_numbers(
    const CsvFile& file,
    std::size_t column,
    const json& expected) {
  const std::string& name = file.columns()[column];
  SCOPED_TRACE("column " + name);
  if (expected.is_null()) {
    // Strings, or a column without rows.
    if (file.num_rows() == 0) return;
    EXPECT_THROW(
        static_cast<void>(file.numbers({name}, at::kDouble)), ConfigError);
    return;
  }
  const at::Tensor numbers = file.numbers({name}, at::kDouble);
  ASSERT_EQ(numbers.size(0), static_cast<std::int64_t>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double found =
        numbers.const_data_ptr<double>()[static_cast<std::ptrdiff_t>(i)];
    EXPECT_TRUE(is_same(found, number_of(expected[i])))
        << found << " for " << expected[i];
  }
}

TEST_F(Corpus, OfCsvIsReadAsPythonsCsvAndPandasReadIt) {
  int num_read = 0;
  for (const json& entry : entries("csv")) {
    read_or_refuse(entry, [&] {
      const std::string delimiter = entry.at("delimiter");
      const CsvFile file(write(entry), {.delimiter = delimiter[0]});
      const json& rows = entry.at("rows");
      if (rows.empty()) {
        EXPECT_TRUE(file.columns().empty());
        return;
      }
      EXPECT_EQ(json(file.columns()), rows[0]);
      ASSERT_EQ(file.num_rows() + 1, static_cast<std::int64_t>(rows.size()));
      for (std::size_t i = 1; i < rows.size(); ++i)
        EXPECT_EQ(json(file.row(static_cast<std::int64_t>(i) - 1)), rows[i]);
      for (std::size_t i = 0; i < rows[0].size(); ++i)
        expect_numbers(file, i, entry.at("numbers")[i]);
      ++num_read;
    });
  }
  EXPECT_GT(num_read, 100);
}

// Compares the value of a key with what Python reads.
void expect_value(
    const JsonRecord& record,
    const std::string& key,
    const json& expected) {
  SCOPED_TRACE("key " + key);
  if (expected.is_string()) {
    EXPECT_EQ(record.text(key), expected.get<std::string>());
  } else if (expected.is_boolean()) {
    EXPECT_EQ(record.boolean(key), expected.get<bool>());
  } else if (expected.is_object() && expected.contains("double")) {
    const double number = number_of(expected.at("double"));
    // Python's integers have no sign at 0.
    EXPECT_TRUE(is_same(record.number(key) + 0.0, number + 0.0));
    EXPECT_TRUE(is_same(
        record.tensor(key, at::kDouble).item<double>() + 0.0, number + 0.0));
    if (!expected.contains("int")) {
      EXPECT_THROW(static_cast<void>(record.integer(key)), ConfigError);
      return;
    }
    const std::string digits = expected.at("int");
    try {
      EXPECT_EQ(std::to_string(record.integer(key)), digits);
    } catch (const ConfigError&) {
      EXPECT_GT(digits.size(), 18U);  // beyond 64 bits
    }
  } else {
    EXPECT_TRUE(record.contains(key));
  }
}

TEST_F(Corpus, OfJsonLinesIsReadAsPythonsJsonReadsIt) {
  int num_read = 0;
  for (const json& entry : entries("json_lines")) {
    read_or_refuse(entry, [&] {
      const JsonLinesFile file(write(entry));
      // A file is refused at its first bad line.
      for (std::int64_t i = 0; i < file.size(); ++i)
        static_cast<void>(file.record(i));
      if (entry.contains("refused")) return;
      const json& records = entry.at("records");
      ASSERT_EQ(file.size(), static_cast<std::int64_t>(records.size()));
      for (std::size_t i = 0; i < records.size(); ++i) {
        const JsonRecord record = file.record(static_cast<std::int64_t>(i));
        for (const auto& [key, value] : records[i].items())
          expect_value(record, key, value);
      }
      ++num_read;
    });
  }
  EXPECT_GT(num_read, 80);
}

// The largest difference from the planes that Pillow decoded, of which each has
// `channels` interleaved values per pixel.
int largest_difference(
    const at::Tensor& image,
    const std::string& expected,
    const json& entry) {
  const at::Tensor interleaved = image.permute({1, 2, 0}).contiguous();
  const auto* const found = interleaved.const_data_ptr<std::uint8_t>();
  const auto channels = static_cast<std::size_t>(image.size(0));
  const auto width = static_cast<std::size_t>(image.size(2));
  EXPECT_EQ(static_cast<std::size_t>(image.numel()), expected.size());
  int largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (i / channels % width == entry.value("skipped_column", width)) continue;
    const int wanted = static_cast<std::uint8_t>(expected[i]);
    largest = std::max(largest, std::abs(found[i] - wanted));
  }
  return largest;
}

TEST_F(Corpus, OfImagesIsDecodedAsPillowDecodesIt) {
  int num_read = 0;
  for (const json& entry : entries("images")) {
    if (entry.contains("cuts")) continue;
    read_or_refuse(entry, [&] {
      const std::string path = write(entry);
      const at::Tensor image = read_image(path);
      EXPECT_EQ(json(image.sizes().slice(1).vec()), entry.at("size"));
      const int tolerance = entry.value("tolerance", 0);
      const auto differs = [&](const at::Tensor& decoded, const char* key) {
        return largest_difference(decoded, from_base64(entry.at(key)), entry);
      };
      EXPECT_LE(differs(read_image(path, 3), "rgb"), tolerance);
      EXPECT_LE(differs(read_image(path, 1), "grey"), tolerance);
      EXPECT_LE(differs(read_image(path, 4).slice(0, 3), "alpha"), 0);
      ++num_read;
    });
  }
  EXPECT_GT(num_read, 100);
}

TEST_F(Corpus, OfImagesIsRefusedAfterEveryByte) {
  int num_cuts = 0;
  for (const json& entry : entries("images")) {
    if (!entry.contains("cuts")) continue;
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const std::string whole = from_base64(entry.at("file"));
    EXPECT_NO_THROW(static_cast<void>(read_image(write(entry))));
    const auto step = entry.at("step").get<std::size_t>();
    for (std::size_t i = 0; i < entry.at("cuts"); i += step, ++num_cuts) {
      EXPECT_THROW(
          static_cast<void>(read_image(write(entry, whole.substr(0, i)))),
          ConfigError)
          << "after " << i << " of " << whole.size() << " bytes";
    }
  }
  EXPECT_GT(num_cuts, 1000);
}

}  // namespace corpus_test
}  // namespace accelerate
