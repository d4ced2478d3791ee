#include "trackers/wandb/wandb_log.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/wandb_reader.h"
#include "trackers/media/sha256.h"
#include "trackers/wandb/wandb_values.h"

namespace accelerate {
namespace {
namespace wandb_log_test {

TEST(Sha256, IsThatOfTheStandard) {
  // FIPS 180-4's examples, and lengths around a block.
  EXPECT_EQ(
      detail::sha256_digits("abc"),
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(
      detail::sha256_digits(""),
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(
      detail::sha256_digits(
          "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(
      detail::sha256_digits(std::string(64, 'a')),
      "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

// Names at random, some of which recur and some of which are objects.
nlohmann::ordered_json random_values(int depth) {
  auto values = nlohmann::ordered_json::object();
  const int count = *rc::gen::inRange(0, 30);
  for (int i = 0; i < count; ++i) {
    const std::string name = std::to_string(*rc::gen::inRange(0, 40));
    const int kind = *rc::gen::inRange(0, 6);
    if (kind == 0 && depth > 0) {
      values[name] = random_values(depth - 1);
    } else if (kind == 1) {
      values[name] = {{"_type", "image"}, {"size", i}};
    } else {
      values[name] = i;
    }
  }
  return values;
}

// Name by name, as the documentation says.
void merge_plainly(
    nlohmann::ordered_json& target,
    const nlohmann::ordered_json& values) {
  for (const auto& [name, value] : values.items()) {
    nlohmann::ordered_json& old = target[name];
    if (old.is_object() && value.is_object() && !value.contains("_type")) {
      merge_plainly(old, value);
    } else {
      old = value;
    }
  }
}

TEST(WandbValues, AreMergedNameByName) {
  EXPECT_TRUE(rc::check([] {
    auto merged = nlohmann::ordered_json::object();
    auto plain = merged;
    for (int i = 0; i < 3; ++i) {
      const auto values = random_values(2);
      detail::merge_wandb_values(merged, values);
      merge_plainly(plain, values);
      RC_ASSERT(merged.dump() == plain.dump());
    }
  }));
}

// A search per name would take minutes.
TEST(WandbValues, MayHaveManyNames) {
  constexpr int kMany = 100'000;
  TrackedValues values;
  for (int i = 0; i < kMany; ++i) values.push_back({std::to_string(i), i});
  const auto added = detail::wandb_value(values);
  auto merged = nlohmann::ordered_json::object();
  for (int i = 0; i < 2; ++i) detail::merge_wandb_values(merged, added);
  EXPECT_EQ(merged.size(), static_cast<std::size_t>(kMany));
  EXPECT_TRUE(merged == added);
}

TEST(WandbLog, DividesRecordsAmongBlocks) {
  EXPECT_TRUE(rc::check([] {
    const testing::TemporaryDirectory place;
    // Sizes that end a record near the end of a block.
    std::vector<std::string> records;
    const auto count = *rc::gen::inRange(1, 6);
    for (int i = 0; i < count; ++i) {
      const auto size = *rc::gen::oneOf(
          rc::gen::inRange(0, 40),
          rc::gen::inRange(32700, 32800),
          rc::gen::inRange(65400, 65600));
      records.emplace_back(static_cast<std::size_t>(size), 'a' + i);
    }
    {
      detail::WandbLog log(place / "run.wandb");
      for (const std::string& record : records) log.append(record);
      log.flush();
    }
    RC_ASSERT(testing::read_wandb_records(place / "run.wandb") == records);
  }));
}

TEST(WandbLog, DoesNotReplaceARun) {
  const testing::TemporaryDirectory place;
  detail::replace_file(place / "run.wandb", "a run");
  testing::expect_error<Error>(
      [&] { detail::WandbLog(place / "run.wandb"); }, "File exists");
}

}  // namespace wandb_log_test
}  // namespace
}  // namespace accelerate
