// The datasets that read files.
#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>

#include <accelerate/data_loader.h>
#include <accelerate/datasets.h>
#include <accelerate/error.h>

#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#include <stb_image_write.h>
#pragma GCC diagnostic pop

#include <rapidcheck.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace datasets_test {

using testing::expect_error;
using testing::TemporaryDirectory;
using Texts = std::vector<std::string>;

class Files : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view contents) const {
    const auto path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << contents;
    return path.string();
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return (directory_.path() / name).string();
  }

 private:
  TemporaryDirectory directory_;
};

using Csv = Files;

TEST_F(Csv, ReadsFieldsOfEveryKind) {
  const CsvFile file(write(
      "a.csv",
      "\xef\xbb\xbfname,\"a \"\"b\"\"\",c\r\n"
      "x,1,2\r\n"
      "\r\n"
      "\"two\nlines, and a comma\",\"+3\", 4.5 \n"
      "\"\",,nan"));
  EXPECT_EQ(file.columns(), (Texts{"name", "a \"b\"", "c"}));
  EXPECT_EQ(file.num_rows(), 3);
  EXPECT_EQ(file.row(1), (Texts{"two\nlines, and a comma", "+3", " 4.5 "}));
  EXPECT_EQ(file.row(2), (Texts{"", "", "nan"}));
  EXPECT_EQ(file.texts("name"), (Texts{"x", "two\nlines, and a comma", ""}));
  const torch::Tensor numbers = file.numbers({"c", "a \"b\""});
  EXPECT_TRUE(torch::equal(numbers[0], torch::tensor({2.0F, 1.0F})));
  EXPECT_TRUE(torch::equal(numbers[1], torch::tensor({4.5F, 3.0F})));
  EXPECT_TRUE(numbers[2].isnan().all().item<bool>());
}

TEST_F(Csv, WithoutHeaderNumbersItsColumns) {
  const CsvFile file(
      write("a.tsv", "1\t2\n3\t4\n"), {.delimiter = '\t', .has_header = false});
  EXPECT_EQ(file.columns(), (Texts{"0", "1"}));
  EXPECT_TRUE(torch::equal(
      file.numbers({"1"}, torch::kLong), torch::tensor({{2}, {4}})));
}

TEST_F(Csv, KeepsWholeNumbersExact) {
  const CsvFile file(write("a.csv", "n,b\n9007199254740993,true\n-1,0\n"));
  const torch::Tensor n = file.numbers({"n"}, torch::kLong);
  EXPECT_EQ(n[0][0].item<std::int64_t>(), 9007199254740993);
  EXPECT_EQ(n[1][0].item<std::int64_t>(), -1);
  EXPECT_TRUE(torch::equal(
      file.numbers({"b"}, torch::kBool), torch::tensor({{true}, {false}})));
}

TEST_F(Csv, NamesTheLineOfWhatIsWrong) {
  const std::string file = write("a.csv", "n,m\n1,2\n\n\"x\ny\",2\n300,\n");
  const CsvFile csv(file);
  expect_error<ConfigError>(
      [&] { static_cast<void>(csv.numbers({"n"})); },
      file + ":4: column 'n': 'x\\ny' is not a number");
  const std::vector<std::int64_t> last{2};
  expect_error<ConfigError>(
      [&] { static_cast<void>(csv.numbers({"n"}, torch::kByte, last)); },
      file + ":6: column 'n': '300' is not a whole number of 8 bits");
  expect_error<ConfigError>(
      [&] { static_cast<void>(csv.numbers({"m"}, torch::kLong, last)); },
      "'' is not a whole number");
  expect_error<ConfigError>(
      [&] { static_cast<void>(csv.numbers({"n"}, torch::kHalf)); },
      "cannot be read as Half");
  expect_error<ConfigError>(
      [&] { static_cast<void>(csv.numbers({"N"})); },
      "has no column 'N'; it has n, m");
  expect_error<ConfigError>(
      [&] { static_cast<void>(csv.row(3)); }, "3 rows, but no row 3");
  expect_error<ConfigError>(
      [&] { CsvFile(write("b.csv", "a,b\n1,2\n1,2,3\n")); },
      ":3: this row has 3 fields, but the first has 2");
  expect_error<ConfigError>(
      [&] { CsvFile(write("c.csv", "a,b\n1,\"2\n")); },
      ":2: a quote is opened");
  expect_error<Error>([&] { CsvFile(path("none.csv")); }, "none.csv");
}

TEST_F(Csv, WithoutRowsIsEmpty) {
  EXPECT_EQ(CsvFile(write("a.csv", "")).num_rows(), 0);
  const CsvFile header(write("b.csv", "a,b\n"));
  EXPECT_EQ(header.num_rows(), 0);
  EXPECT_EQ(header.numbers({"b"}).sizes(), (std::vector<std::int64_t>{0, 1}));
}

TEST_F(Csv, TurnsStringsIntoCategories) {
  const CsvFile file(write("a.csv", "k\nb\na\nb\nc\n"));
  const auto [codes, names] = file.categories("k");
  EXPECT_EQ(names, (Texts{"a", "b", "c"}));
  EXPECT_TRUE(torch::equal(codes, torch::tensor({1, 0, 1, 2})));
}

TEST_F(Csv, GivesBatchesToALoader) {
  DataLoader loader(
      CsvDataset(
          write("a.csv", "x,y,label\n1,2,0\n3,4,1\n5,6,0\n"),
          {.inputs = {"y", "x"},
           .targets = {"label"},
           .target_dtype = torch::kLong}),
      {.batch_size = 2, .num_workers = 2});
  std::vector<torch::Tensor> inputs, targets;
  for (auto& [x, y] : loader) {
    inputs.push_back(x);
    targets.push_back(y);
  }
  EXPECT_TRUE(torch::equal(
      torch::cat(inputs),
      torch::tensor({{2.0F, 1.0F}, {4.0F, 3.0F}, {6.0F, 5.0F}})));
  EXPECT_TRUE(
      torch::equal(torch::cat(targets), torch::tensor({{0}, {1}, {0}})));
  expect_error<ConfigError>(
      [&] { CsvDataset(path("a.csv"), {.inputs = {"x", "labels"}}); },
      "was 'label' meant?");
}

TEST_F(Csv, GivesADatasetOfTheFormatAndDtypeAsked) {
  const CsvDataset dataset(
      write("a.csv", "1;2\n3;4\n"),
      {.inputs = {"1"},
       .targets = {"0"},
       .input_dtype = torch::kLong,
       .csv = {.delimiter = ';', .has_header = false}});
  const std::vector<std::int64_t> indices{1, 0};
  const auto [inputs, targets] = dataset.get_batch(indices);
  EXPECT_EQ(inputs.scalar_type(), torch::kLong);
  EXPECT_TRUE(torch::equal(inputs, torch::tensor({{4}, {2}})));
  EXPECT_TRUE(torch::equal(targets, torch::tensor({{3.0F}, {1.0F}})));
}

TEST_F(Csv, GivesBackWhatWasWritten) {
  EXPECT_TRUE(rc::check([&] {
    const auto width = *rc::gen::inRange<std::size_t>(1, 4);
    const auto fields = rc::gen::container<std::string>(
        rc::gen::elementOf(std::string("a,\"\n\r x")));
    const auto rows = *rc::gen::container<std::vector<Texts>>(
        rc::gen::container<Texts>(width, fields));
    std::string text;
    for (const Texts& row : rows) {
      for (std::size_t i = 0; i < width; ++i) {
        std::string quoted = "\"";
        for (const char c : row[i])
          quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
        text += (i == 0 ? "" : ",") + quoted + "\"";
      }
      text += *rc::gen::elementOf(Texts{"\n", "\r\n", "\r"});
    }
    const CsvFile file(write("law.csv", text), {.has_header = false});
    RC_ASSERT(file.num_rows() == static_cast<std::int64_t>(rows.size()));
    std::int64_t next = 0;
    for (const Texts& row : rows) RC_ASSERT(file.row(next++) == row);
  }));
}

TEST_F(Csv, RefusesToChooseAmongColumnsOfOneName) {
  const CsvFile file(write("a.csv", "a,b,a\n1,2,3\n"));
  EXPECT_EQ(file.row(0), (Texts{"1", "2", "3"}));
  EXPECT_EQ(file.texts("b"), (Texts{"2"}));
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { static_cast<void>(file.numbers({"a"})); },
           [&] { static_cast<void>(file.texts("a")); },
           [&] { static_cast<void>(file.categories("a")); },
           [&] { CsvDataset(path("a.csv"), {.inputs = {"a"}}); }})
    expect_error<ConfigError>(read, "has more than one column 'a'");
}

TEST_F(Csv, RefusesDelimitersThatMeanSomethingElse) {
  for (const char delimiter : {'"', '\n', '\r', '\0'}) {
    expect_error<ConfigError>(
        [&] { CsvFile(write("a.csv", "a,b\n"), {.delimiter = delimiter}); },
        "the delimiter of");
  }
}

TEST_F(Csv, ReadsNumbersThatTheDtypeHasAndRefusesOthers) {
  struct Row {
    const char* text;
    at::ScalarType dtype;
    std::optional<double> value;
  };
  const std::vector<Row> rows{
      {"255", at::kByte, 255},
      {"256", at::kByte, std::nullopt},
      {"-1", at::kByte, std::nullopt},
      {"-32768", at::kShort, -32768},
      {"32768", at::kShort, std::nullopt},
      {"2147483647", at::kInt, 2147483647},
      {"2147483648", at::kInt, std::nullopt},
      {"9223372036854775808", at::kLong, std::nullopt},
      {"+5", at::kLong, 5},
      {"+-5", at::kLong, std::nullopt},
      {"5.0", at::kLong, std::nullopt},
      {"NA", at::kLong, std::nullopt},
      {"+-5", at::kFloat, std::nullopt},
      {"3.4028235e38", at::kFloat, 3.4028234663852886e38},
      {"3.5e38", at::kFloat, std::nullopt},
      {"-3.5e38", at::kFloat, std::nullopt},
      {"3.5e38", at::kDouble, 3.5e38},
      {"1e-400", at::kDouble, 0},
      {"1e-400", at::kFloat, 0},
      {"1e-60", at::kFloat, 0},
      {"TRUE", at::kBool, 1},
      {"2", at::kBool, std::nullopt},
      {"", at::kBool, std::nullopt}};
  for (const auto& [text, dtype, value] : rows) {
    SCOPED_TRACE(text);
    const CsvFile file(write("a.csv", std::string("t,n\nx,") + text + "\n"));
    const auto read = [&, wanted = dtype] {
      return file.numbers({"n"}, wanted);
    };
    if (value) {
      EXPECT_EQ(read().to(at::kDouble).item<double>(), *value);
    } else {
      expect_error<ConfigError>(
          [&] { static_cast<void>(read()); }, ":2: column 'n': '");
    }
  }
}

TEST_F(Csv, ShowsNamesAndFieldsAsText) {
  const CsvFile file(write("a.csv", "a\x1b[2J\n\x1b]0;x\a\n"));
  expect_error<ConfigError>(
      [&] { static_cast<void>(file.numbers({"a\x1b[2J"})); },
      R"(column 'a\x1b[2J': '\x1b]0;x\x07' is not a number)");
  expect_error<ConfigError>(
      [&] { static_cast<void>(file.texts("b")); }, R"(it has a\x1b[2J)");
}

using JsonLines = Files;

TEST_F(JsonLines, GivesTypedValues) {
  const JsonLinesFile file(write(
      "a.jsonl",
      "{\"text\": \"caf\\u00e9\", \"ids\": [1, 2, 9007199254740993], \"m\": "
      "[[1, 2.5], [3, 4]],"
      " \"n\": 3, \"yes\": true, \"tags\": [\"a\", \"b\"], \"none\": []}\n\n  "
      "\n{\"n\": -1}\r\n"));
  EXPECT_EQ(file.size(), 2);
  const JsonRecord record = file.record(0);
  EXPECT_EQ(record.text("text"), "café");
  EXPECT_TRUE(torch::equal(
      record.tensor("ids", torch::kLong),
      torch::tensor({1L, 2L, 9007199254740993L})));
  EXPECT_TRUE(torch::equal(
      record.tensor("m"), torch::tensor({{1.0F, 2.5F}, {3.0F, 4.0F}})));
  EXPECT_EQ(record.tensor("n").dim(), 0);
  EXPECT_EQ(record.tensor("none").sizes(), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(record.integer("n"), 3);
  EXPECT_EQ(record.number("n"), 3.0);
  EXPECT_TRUE(record.boolean("yes"));
  EXPECT_EQ(record.texts("tags"), (Texts{"a", "b"}));
  EXPECT_TRUE(record.contains("n"));
  EXPECT_FALSE(record.contains("N"));
  EXPECT_EQ(file.record(1).integer("n"), -1);
  EXPECT_EQ(file.line(1), "{\"n\": -1}");
}

TEST_F(JsonLines, NamesLineAndKeyOfWhatIsWrong) {
  const std::string path = write(
      "a.jsonl",
      "\n{\"a\": [1, [2]], \"t\": 1, \"f\": 1.5, \"big\": "
      "18446744073709551615}\n[1]\n{\"a\"\n");
  const JsonLinesFile file(path);
  const JsonRecord record = file.record(0);
  const auto refuse = [](auto&& body, const std::string& phrase) {
    expect_error<ConfigError>(body, phrase);
  };
  refuse(
      [&] { static_cast<void>(record.tensor("a")); },
      path + ":2: 'a' must be a number");
  refuse(
      [&] { static_cast<void>(record.tensor("f", torch::kLong)); },
      "'f' must be a whole number");
  refuse(
      [&] { static_cast<void>(record.text("t")); },
      "'t' must be a string, but is a number");
  refuse(
      [&] { static_cast<void>(record.number("a")); },
      "'a' must be a number, but is an array");
  refuse(
      [&] { static_cast<void>(record.boolean("t")); },
      "'t' must be true or false, but is a number");
  refuse(
      [&] { static_cast<void>(record.texts("a")); },
      "'a' must be a list of strings");
  refuse(
      [&] { static_cast<void>(record.texts("t")); },
      "'t' must be a list of strings");
  refuse(
      [&] { static_cast<void>(record.integer("f")); },
      "'f' must be a 64-bit integer");
  refuse(
      [&] { static_cast<void>(record.integer("big")); },
      "'big' must be a 64-bit integer");
  refuse([&] { static_cast<void>(record.text("z")); }, "'z' is missing");
  refuse(
      [&] { static_cast<void>(file.record(1)); },
      path +
          ":3: a line of a JSON lines file must be an object, but is an array");
  refuse([&] { static_cast<void>(file.record(2)); }, path + ":4: ");
  refuse([&] { static_cast<void>(file.record(3)); }, "3 lines, but no line 3");
}

TEST_F(JsonLines, LimitsNestingAndShowsNoEscapes) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + "7" + std::string(depth, ']');
  };
  const std::string path = write(
      "a.jsonl",
      "{\"a\": " + nested(64) + "}\n{\"a\": " + nested(65) +
          "}\n{\"a\": " + nested(100'000) + "}\n{\"a\": \x1b[2J}\n{\"a\": [" +
          "9223372036854775808]}\n");
  const JsonLinesFile file(path);
  EXPECT_EQ(file.record(0).tensor("a").dim(), 64);
  const auto refuse = [](auto&& body, const std::string& phrase) {
    expect_error<ConfigError>(body, phrase);
  };
  refuse(
      [&] { static_cast<void>(file.record(1).tensor("a")); },
      path + ":2: 'a' must have at most 64 levels of lists");
  refuse(
      [&] { static_cast<void>(file.record(2)); },
      path + ":3: lists and objects are nested 100001 deep, but only 512");
  refuse(
      [&] { static_cast<void>(file.record(3)); },
      path + ":4: column 7: syntax error");
  // It would be negative as a signed 64-bit integer.
  refuse(
      [&] { static_cast<void>(file.record(4).tensor("a", torch::kLong)); },
      "must be a whole number of 64 bits");
  EXPECT_EQ(file.record(4).tensor("a", torch::kDouble).item<double>(), 0x1p63);
}

TEST_F(JsonLines, GiveNumbersThatTheDtypeHasAndRefuseOthers) {
  struct Row {
    const char* text;
    at::ScalarType dtype;
    std::optional<double> value;
  };
  const std::vector<Row> rows{
      {"3000000000", at::kInt, std::nullopt},
      {"2147483647", at::kInt, 2147483647},
      {"300", at::kByte, std::nullopt},
      {"255", at::kByte, 255},
      {"-1", at::kByte, std::nullopt},
      {"-129", at::kChar, std::nullopt},
      {"-128", at::kChar, -128},
      {"40000", at::kShort, std::nullopt},
      {"65535", at::kUInt16, 65535},
      {"65536", at::kUInt16, std::nullopt},
      {"-1", at::kUInt32, std::nullopt},
      {"4294967295", at::kUInt32, 4294967295},
      {"-1", at::kUInt64, std::nullopt},
      {"9223372036854775808", at::kLong, std::nullopt},
      {"2", at::kBool, std::nullopt},
      {"true", at::kBool, 1},
      {"true", at::kByte, 1},
      {"1.5", at::kInt, std::nullopt},
      {"NaN", at::kInt, std::nullopt},
      {"1e39", at::kFloat, std::nullopt},
      {"Infinity", at::kFloat, std::numeric_limits<double>::infinity()},
      {"70000", at::kHalf, std::nullopt},
      {"65504", at::kHalf, 65504},
      {"70000", at::kBFloat16, 70144},
      {"500", at::kFloat8_e4m3fn, std::nullopt},
      {"448", at::kFloat8_e4m3fn, 448},
      {"460", at::kFloat8_e4m3fn, 448},
      {"62000", at::kFloat8_e5m2, std::nullopt},
      {"-57344", at::kFloat8_e5m2, -57344},
      {"1e39", at::kDouble, 1e39}};
  for (const auto& [text, dtype, value] : rows) {
    SCOPED_TRACE(text);
    const std::string name = write(
        "a.jsonl",
        std::string("{\"y\": ") + text + ", \"z\": [[0], [" + text + "]]}\n");
    const JsonRecord record = JsonLinesFile(name).record(0);
    for (const char* const key : {"y", "z"}) {
      const auto read = [&, wanted = dtype] {
        return record.tensor(key, wanted);
      };
      if (value) {
        EXPECT_EQ(read().flatten()[-1].to(at::kDouble).item<double>(), *value);
      } else {
        expect_error<ConfigError>(
            [&] { static_cast<void>(read()); },
            name + ":1: '" + std::string(key) + "' ");
      }
    }
  }
  const torch::Tensor largest =
      JsonLinesFile(write("b.jsonl", "{\"y\": 18446744073709551615}"))
          .record(0)
          .tensor("y", at::kUInt64);
  EXPECT_EQ(
      *static_cast<const std::uint64_t*>(largest.const_data_ptr()),
      18446744073709551615U);
}

TEST_F(JsonLines, GiveSamplesToALoader) {
  std::string text;
  for (int i = 0; i < 10; ++i) {
    text += "{\"x\": [" + std::to_string(i) +
        ", 1], \"y\": " + std::to_string(i % 2) + "}\n";
  }
  DataLoader loader(
      JsonLinesDataset(
          write("a.jsonl", text),
          [](const JsonRecord& r) {
            return std::tuple{r.tensor("x"), r.tensor("y", torch::kLong)};
          }),
      {.batch_size = 4, .num_workers = 2});
  std::int64_t sum = 0;
  for (auto& [x, y] : loader) {
    EXPECT_TRUE(torch::equal(x.select(1, 0).to(torch::kLong).remainder(2), y));
    sum += x.select(1, 0).sum().item<std::int64_t>();
  }
  EXPECT_EQ(sum, 45);
}

using Tokens = Files;

template <class Token>
std::string bytes_of(const std::vector<Token>& tokens) {
  return {
      reinterpret_cast<const char*>(tokens.data()),
      tokens.size() * sizeof(Token)};
}

TEST_F(Tokens, GiveEachTokenAndTheNext) {
  std::vector<std::uint16_t> first(10), second(4);
  std::iota(first.begin(), first.end(), std::uint16_t{65526});
  std::iota(second.begin(), second.end(), std::uint16_t{0});
  const TokenDataset dataset(
      {write("a.bin", bytes_of(first)), write("b.bin", bytes_of(second))},
      {.block_size = 3});
  EXPECT_EQ(dataset.num_tokens(), 14);
  EXPECT_EQ(dataset.size(), 4);
  const std::vector<std::int64_t> indices{3, 0, 2};
  const auto [inputs, targets] = dataset.get_batch(indices);
  EXPECT_TRUE(torch::equal(
      inputs,
      torch::tensor(
          {{0, 1, 2}, {65526, 65527, 65528}, {65532, 65533, 65534}})));
  EXPECT_TRUE(torch::equal(targets, inputs + 1));
}

TEST_F(Tokens, HaveAnyWidthStrideAndHeader) {
  std::vector<std::int32_t> tokens(9);
  std::iota(tokens.begin(), tokens.end(), 0);
  const TokenDataset dataset(
      {write("a.bin", "head." + bytes_of(tokens))},
      {.dtype = torch::kInt, .block_size = 4, .stride = 2, .header_bytes = 5});
  EXPECT_EQ(dataset.size(), 3);
  const std::vector<std::int64_t> indices{2};
  const auto [inputs, targets] = dataset.get_batch(indices);
  EXPECT_TRUE(torch::equal(inputs, torch::tensor({{4, 5, 6, 7}})));
  EXPECT_TRUE(torch::equal(targets, torch::tensor({{5, 6, 7, 8}})));
}

TEST_F(Tokens, GiveNoSampleIfTooFew) {
  std::vector<std::uint8_t> tokens(4);
  const TokenDataset dataset(
      {write("a.bin", bytes_of(tokens)), write("b.bin", "")},
      {.dtype = torch::kByte, .block_size = 4});
  EXPECT_EQ(dataset.size(), 0);
  DataLoader loader(dataset, {.batch_size = 2});
  for (auto& batch : loader) ADD_FAILURE() << std::get<0>(batch);
}

TEST_F(Tokens, RefuseFilesOfOtherSizes) {
  expect_error<ConfigError>(
      [&] { TokenDataset({write("a.bin", "abc")}); }, "3 bytes");
  expect_error<ConfigError>(
      [&] { TokenDataset({path("a.bin")}, {.dtype = torch::kHalf}); }, "Half");
  expect_error<ConfigError>(
      [&] { TokenDataset({path("a.bin")}, {.block_size = 0}); },
      "but they are 1, 0, 0 and 0");
  expect_error<ConfigError>([&] { TokenDataset({}); }, "but they are 0, 1024");
  expect_error<Error>([&] { TokenDataset({path("none.bin")}); }, "none.bin");
  const std::vector<std::int64_t> wrong{-1};
  const TokenDataset dataset({write("b.bin", "abcdefgh")}, {.block_size = 1});
  expect_error<ConfigError>(
      [&] { static_cast<void>(dataset.get_batch(wrong)); }, "no sample -1");
}

using Idx = Files;

TEST_F(Idx, ReadsAnyDtypeAndShape) {
  const std::string bytes("\0\0\x08\x02\0\0\0\x02\0\0\0\x03\1\2\3\4\5\xff", 18);
  EXPECT_TRUE(torch::equal(
      read_idx(write("a", bytes)),
      torch::tensor({{1, 2, 3}, {4, 5, 255}}, torch::kByte)));
  const std::string shorts("\0\0\x0b\x01\0\0\0\x02\xff\xfe\x01\x00", 12);
  EXPECT_TRUE(torch::equal(
      read_idx(write("b", shorts)), torch::tensor({-2, 256}, torch::kShort)));
  const std::string number("\0\0\x0d\0\x3f\xc0\0\0", 8);
  EXPECT_TRUE(torch::equal(read_idx(write("c", number)), torch::tensor(1.5F)));
  const std::string empty("\0\0\x0e\x02\0\0\0\0\0\0\0\x03", 12);
  EXPECT_EQ(
      read_idx(write("d", empty)).sizes(), (std::vector<std::int64_t>{0, 3}));
}

TEST_F(Idx, RefusesFilesOfOtherFormats) {
  const auto refuse = [&](const std::string& bytes, const std::string& phrase) {
    expect_error<ConfigError>(
        [&] { static_cast<void>(read_idx(write("x", bytes))); }, phrase);
  };
  refuse("", "does not begin with two zeros");
  refuse("hello", "does not begin with two zeros");
  refuse("\x1f\x8b compressed", "gunzip");
  refuse(std::string("\0\0\x07\x01\0\0\0\x01.", 9), "type code is 7");
  refuse(std::string("\0\0\x08\x02\0\0", 6), "which its header contradicts");
  refuse(std::string("\0\0\x08\x01\0\0\0\x02.", 9), "header contradicts");
  refuse(std::string("\0\0\x08\x01\0\0\0\x01..", 10), "header contradicts");
  // The file has no elements, but the other sizes are too large for LibTorch to
  // count.
  refuse(
      std::string("\0\0\x08\x04\0\0\0\0", 8) + std::string(12, '\xff'),
      "whose sizes no tensor can have");
  refuse(
      std::string("\0\0\x08\x41", 4) + std::string(65 * 4, '\0'),
      "has 65 dimensions");
  EXPECT_EQ(
      read_idx(
          write(
              "wide", std::string("\0\0\x08\x02\0\0\0\0\xff\xff\xff\xff", 12)))
          .sizes(),
      (std::vector<std::int64_t>{0, 4294967295}));
  // The product of the sizes overflows.
  refuse(
      std::string("\0\0\x08\x03", 4) + std::string(12, '\xff') + "...",
      "header contradicts");
}

class Images : public Files {
 protected:
  // Writes a picture of a single colour.
  void write_image(
      const std::string& name,
      int height,
      int width,
      const std::string& colour) const {
    std::string pixels;
    for (int i = 0; i < height * width; ++i) pixels += colour;
    const std::string file = write(name, "");
    ASSERT_NE(
        stbi_write_png(
            file.c_str(),
            width,
            height,
            static_cast<int>(colour.size()),
            pixels.data(),
            0),
        0);
  }
};

TEST_F(Images, AreDecodedToChannelsHeightAndWidth) {
  write_image("a.png", 2, 3, "\x0a\x14\x1e");
  const torch::Tensor image = read_image(path("a.png"));
  EXPECT_EQ(image.sizes(), (std::vector<std::int64_t>{3, 2, 3}));
  EXPECT_EQ(image.scalar_type(), torch::kByte);
  EXPECT_TRUE(image.is_contiguous());
  EXPECT_TRUE(torch::equal(
      image.flatten(1).select(1, 0),
      torch::tensor({10, 20, 30}, torch::kByte)));
  EXPECT_EQ(read_image(path("a.png"), 1).size(0), 1);
  EXPECT_EQ(read_image(path("a.png"), 4).size(0), 4);
  EXPECT_TRUE(torch::equal(
      read_image(write("b.ppm", "P6 2 1 255 abcdef")),
      torch::tensor({'a', 'd', 'b', 'e', 'c', 'f'}, torch::kByte)
          .view({3, 1, 2})));
  expect_error<ConfigError>(
      [&] { static_cast<void>(read_image(path("a.png"), 2)); },
      "must be 1, 3 or 4, but is 2");
  expect_error<ConfigError>(
      [&] { static_cast<void>(read_image(write("c.png", "no image"))); },
      "cannot be decoded");
  expect_error<Error>(
      [&] { static_cast<void>(read_image(path("none.png"))); }, "none.png");
}

TEST_F(Images, AreRefusedIfAFewBytesAnnounceFarTooMany) {
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(read_image(write("d.ppm", "P5 60000 60000 255 x")));
      },
      "announces 60000 by 60000 pixels; at most 178956970 pixels are decoded");
}

TEST_F(Images, AreLabelledByDirectory) {
  write_image("train/cat/2.png", 4, 4, "\x64\x64\x64");
  write_image("train/cat/more/1.PNG", 8, 4, "\xc8\xc8\xc8");
  write_image("train/ant/x.png", 6, 6, "\xff");
  write("train/ant/notes.txt", "no image");
  write("train/readme.txt", "no class");
  const ImageFolder directory(path("train"), {.size = std::pair{2, 3}});
  EXPECT_EQ(directory.classes(), (Texts{"ant", "cat"}));
  EXPECT_EQ(directory.size(), 3);
  EXPECT_TRUE(directory.path(1).ends_with("cat/2.png"));
  EXPECT_EQ(directory.label(2), 1);
  DataLoader loader(directory, {.batch_size = 3, .num_workers = 2});
  for (auto& [images, labels] : loader) {
    EXPECT_EQ(images.sizes(), (std::vector<std::int64_t>{3, 3, 2, 3}));
    EXPECT_TRUE(torch::equal(labels, torch::tensor({0, 1, 1})));
    const torch::Tensor means = images.mean({1, 2, 3});
    EXPECT_TRUE(
        torch::equal(means, torch::tensor({255, 100, 200}).div(255.0F)));
  }
}

TEST_F(Images, HaveTheChannelsAsked) {
  write_image("t/k/a.png", 2, 2, "\x0a\x14\x1e");
  at::Generator generator = at::detail::createCPUGenerator(1);
  for (const int channels : {1, 3, 4}) {
    const ImageFolder folder(path("t"), {.channels = channels});
    EXPECT_EQ(
        std::get<0>(folder.get(0, generator)).sizes(),
        (std::vector<std::int64_t>{channels, 2, 2}));
  }
}

TEST_F(Images, AreTransformedWithTheirOwnRandomNumbers) {
  for (const char* const name : {"a", "b", "c"})
    write_image("t/k/" + std::string(name) + ".png", 2, 2, "x");
  const auto read = [&](int num_workers) {
    DataLoader loader(
        ImageFolder(
            path("t"),
            {.channels = 1,
             .transform =
                 [](at::Tensor, at::Generator& generator) {
                   return torch::randint(1000, {1}, generator, torch::kLong);
                 }}),
        {.batch_size = 2, .num_workers = num_workers});
    std::vector<torch::Tensor> seen;
    for (auto& [image, label] : loader) seen.push_back(image);
    return torch::cat(seen);
  };
  EXPECT_TRUE(torch::equal(read(0), read(2)));
  EXPECT_NE(read(0)[0].item<std::int64_t>(), read(0)[1].item<std::int64_t>());
}

TEST_F(Images, NeedADirectoryThatHasImages) {
  write("empty/cat/notes.txt", "");
  expect_error<ConfigError>(
      [&] { ImageFolder(path("empty")); }, "must have images");
  expect_error<Error>(
      [&] { ImageFolder(path("none")); }, "none cannot be read");
}

TEST_F(Images, AreClassifiedAsTorchvisionDoesOrRefusedByName) {
  for (const char* const name :
       {"z.png", "a.PNG", "m/x.png", "m-1/x.png", ".png"})
    write_image(std::string("order/cat/") + name, 1, 1, "x");
  const ImageFolder folder(path("order"));
  Texts names;
  for (std::int64_t i = 0; i < folder.size(); ++i)
    names.push_back(folder.path(i).substr(path("order/cat/").size()));
  // Python's sorted(os.walk()), then sorted() names.
  EXPECT_EQ(names, (Texts{".png", "a.PNG", "z.png", "m/x.png", "m-1/x.png"}));
  write_image("hidden/cat/1.png", 1, 1, "x");
  write_image("hidden/.dog/1.png", 1, 1, "x");
  EXPECT_EQ(ImageFolder(path("hidden")).classes(), (Texts{".dog", "cat"}));
  std::filesystem::create_directory(path("hidden/.ipynb_checkpoints"));
  write("hidden/empty/notes.txt", "");
  expect_error<ConfigError>(
      [&] { ImageFolder(path("hidden")); },
      "directories without images: .ipynb_checkpoints, empty; each would be a "
      "class");
  for (const char* const name : {"x.tif", "x.TIFF", "x.webp"}) {
    const std::string directory = std::string("other") + name;
    write_image(directory + "/cat/1.png", 1, 1, "x");
    write(directory + "/cat/" + name, "");
    expect_error<ConfigError>(
        [&] { ImageFolder(path(directory)); },
        std::string(name) + " cannot be decoded; convert it to PNG or JPEG");
  }
}

// What opens each kind of file that a program names.
const std::vector<std::pair<std::string, void (*)(const std::string&)>>
    kReaders{
        {"csv", [](const std::string& file) { CsvFile{file}; }},
        {"jsonl", [](const std::string& file) { JsonLinesFile{file}; }},
        {"idx", [](const std::string& file) { (void)read_idx(file); }},
        {"image", [](const std::string& file) { (void)read_image(file); }},
        {"tokens", [](const std::string& file) { TokenDataset({file}); }}};

TEST_F(Files, ThatAreNoRegularFilesAreRefusedAtOnce) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_directory(path("directory"));
  for (const auto& [name, read] : kReaders) {
    SCOPED_TRACE(name);
    for (const std::string& file :
         {pipe, path("directory"), std::string("/dev/zero"), path("none")})
      expect_error<Error>([&, &reader = read] { reader(file); }, file);
  }
}

TEST_F(Files, ThatBecomeShorterAreErrors) {
  const auto shorten = [&](const std::string& name) {
    std::filesystem::resize_file(path(name), 1);
  };
  const std::string rows(20'000, '\n');
  const CsvFile csv(write("a.csv", "a\n" + rows + "1\n"));
  shorten("a.csv");
  const JsonLinesFile lines(write("a.jsonl", rows + "{\"a\": 1}\n"));
  shorten("a.jsonl");
  const TokenDataset tokens(
      {write("a.bin", std::string(40'000, 'x'))}, {.block_size = 100});
  shorten("a.bin");
  const std::vector<std::int64_t> last{tokens.size() - 1};
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { static_cast<void>(csv.row(0)); },
           [&] { static_cast<void>(csv.numbers({"a"})); },
           [&] { static_cast<void>(csv.texts("a")); },
           [&] { static_cast<void>(lines.line(0)); },
           [&] { static_cast<void>(lines.record(0)); },
           [&] { static_cast<void>(tokens.get_batch(last)); }})
    expect_error<Error>(
        read, "must not change while it is read, but is shorter than the");
}

// A file of arbitrary bytes is either read or refused with one of our errors.
class AnyBytes : public Images {
 protected:
  template <class Read>
  static void read_or_refuse(Read&& read) {
    try {
      read();
    } catch (const Error&) {
    }
  }
  // Returns `whole` with some bytes changed and perhaps its end cut off.
  static std::string damaged(std::string whole) {
    const auto length = static_cast<int>(whole.size());
    const int num_changes = *rc::gen::inRange(0, 4);
    for (int i = 0; i < num_changes && length > 0; ++i) {
      const auto place = static_cast<std::size_t>(*rc::gen::inRange(0, length));
      whole[place] = *rc::gen::arbitrary<char>();
    }
    if (*rc::gen::arbitrary<bool>()) {
      whole.resize(static_cast<std::size_t>(*rc::gen::inRange(0, length + 1)));
    }
    return whole;
  }
};

TEST_F(AnyBytes, AreReadOrRefusedAsCsv) {
  EXPECT_TRUE(rc::check([&] {
    const auto text = *rc::gen::container<std::string>(
        rc::gen::elementOf(std::string("a1,\"\n\r.-e \xff")));
    const std::string path = write("x.csv", text);
    read_or_refuse([&] {
      const CsvFile file(path);
      for (std::int64_t i = 0; i < file.num_rows(); ++i) {
        RC_ASSERT(file.row(i).size() == file.columns().size());
      }
      static_cast<void>(file.numbers(file.columns(), torch::kLong));
    });
  }));
}

TEST_F(AnyBytes, AreReadOrRefusedAsJsonLines) {
  EXPECT_TRUE(rc::check([&] {
    const std::string path = write(
        "x.jsonl",
        damaged("{\"a\": [[1, 2], [3, 4]], \"b\": \"c\"}\n{\"a\": 1}\n"));
    read_or_refuse([&] {
      const JsonLinesFile file(path);
      for (std::int64_t i = 0; i < file.size(); ++i) {
        read_or_refuse([&] { static_cast<void>(file.record(i).tensor("a")); });
        read_or_refuse([&] { static_cast<void>(file.record(i).text("b")); });
      }
    });
  }));
}

TEST_F(AnyBytes, AreReadOrRefusedAsIdx) {
  EXPECT_TRUE(rc::check([&] {
    const std::string whole(
        "\0\0\x0b\x02\0\0\0\x02\0\0\0\x03\1\2\3\4\5\6\7\1\2\3\4\5", 24);
    const std::string path = write("x.idx", damaged(whole));
    read_or_refuse([&] { static_cast<void>(read_idx(path)); });
  }));
}

TEST_F(AnyBytes, AreReadOrRefusedAsImages) {
  write_image("whole.png", 5, 7, "abc");
  std::ifstream file(path("whole.png"), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(rc::check([&] {
    const std::string path = write("x.png", damaged(whole));
    read_or_refuse([&] { static_cast<void>(read_image(path, 3)); });
  }));
}

}  // namespace datasets_test
}  // namespace accelerate
