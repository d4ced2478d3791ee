#include "format/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "format/checkpoint/checkpoint_directory.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace manifest_test {

using safetensors::Dtype;
using testing::expect_error;

Manifest example() {
  Manifest manifest;
  manifest.writer = "accelerate.cpp test";
  manifest.created = "2026-11-21T14:00:00Z";
  manifest.iteration = 7;
  manifest.num_processes = 2;
  manifest.files["a"] = {kChunkBytes + 1, {1, 0xfedcba9876543210}};
  manifest.files["b/c"] = {0, {}};
  manifest.sections["model"]["w"] = {
      Dtype::F32, {4, 2}, {{"a", {{0, 0}, {3, 2}}}, {"b/c", {{3, 0}, {1, 2}}}}};
  manifest.sections["model"]["scalar"] = {Dtype::I64, {}, {{"a", {{}, {}}}}};
  manifest.aliases["model"]["head"] = "w";
  return manifest;
}

TEST(ManifestText, RoundTrips) {
  const std::string text = manifest_text(example());
  const Manifest again = parse_manifest(text, "m");
  EXPECT_EQ(manifest_text(again), text);
  EXPECT_EQ(again.files.at("a").checksums[1], 0xfedcba9876543210);
  EXPECT_EQ(again.sections.at("model").at("w").boxes[1].box.begin[0], 3u);
  EXPECT_EQ(again.aliases.at("model").at("head"), "w");
}

TEST(ManifestText, IsRefusedIfAnyByteDiffers) {
  const std::string text = manifest_text(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_THROW(
          static_cast<void>(parse_manifest(changed, "m")), CheckpointError)
          << i;
    }
  }
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_THROW(
        static_cast<void>(parse_manifest(text.substr(0, size), "m")),
        CheckpointError);
  }
}

TEST(ManifestText, RefusesInconsistentContents) {
  const auto refuse = [](const Manifest& manifest, const std::string& phrase) {
    expect_error<CheckpointError>(
        [&] {
          static_cast<void>(parse_manifest(manifest_text(manifest), "m"));
        },
        phrase);
  };
  Manifest manifest = example();
  manifest.sections["model"]["w"].boxes[1].box.begin[0] = 2;
  refuse(manifest, "overlap");
  manifest = example();
  manifest.sections["model"]["w"].boxes.pop_back();
  refuse(manifest, "do not cover it");
  manifest = example();
  manifest.sections["model"]["w"].boxes[1].box.begin[0] = 4;
  refuse(manifest, "not inside");
  manifest = example();
  manifest.files.erase("b/c");
  refuse(manifest, "not listed: b/c");
  manifest = example();
  manifest.files["../x"] = {};
  refuse(manifest, "not inside the directory");
  manifest = example();
  manifest.files["a"].checksums.pop_back();
  refuse(manifest, "one checksum per chunk");
}

TEST(ManifestText, ReadsManyBoxesThatBeginTogether) {
  constexpr std::uint64_t kMany = 60'000;
  Manifest manifest = example();
  SavedTensor& tensor = manifest.sections["model"]["w"];
  tensor.shape = {4, kMany};
  tensor.boxes.clear();
  for (std::uint64_t i = 0; i < kMany; ++i) {
    tensor.boxes.push_back({"a", {{0, i}, {4, 1}}});
  }
  EXPECT_EQ(
      parse_manifest(manifest_text(manifest), "m")
          .sections.at("model")
          .at("w")
          .boxes.size(),
      kMany);
  tensor.boxes.back().box.begin[1] = 0;
  expect_error<CheckpointError>(
      [&] { static_cast<void>(parse_manifest(manifest_text(manifest), "m")); },
      "boxes of a tensor overlap (\"w\")");
}

TEST(ManifestText, NamesNothingThatATerminalObeys) {
  Manifest manifest = example();
  manifest.files.erase("b/c");
  manifest.sections["model"]["w"].boxes[1].file = "b\x1b]0;pwned\a";
  expect_error<CheckpointError>(
      [&] { static_cast<void>(parse_manifest(manifest_text(manifest), "m")); },
      "not listed: b\\x1b]0;pwned\\x07");
}

TEST(ManifestText, RefusesDeepJson) {
  const std::string body = std::string(100'000, '[');
  expect_error<CheckpointError>(
      [&] { static_cast<void>(parse_fragment(body)); },
      "only 512 levels are read");
}

TEST(Retention, KeepsTheHighestNumbersAndUnknownDirectories) {
  const auto entry = [](const char* name, CheckpointKind kind) {
    return CheckpointEntry{name, number_of(name), kind, ""};
  };
  const std::vector<CheckpointEntry> entries{
      entry("notes", CheckpointKind::unusable),
      entry("checkpoint_0", CheckpointKind::complete),
      entry("checkpoint_2", CheckpointKind::unusable),
      entry("checkpoint_9", CheckpointKind::accelerate),
      entry("checkpoint_10", CheckpointKind::complete)};
  const auto plan = plan_retention(entries, "checkpoint_11", 2);
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->replaces);
  EXPECT_EQ(
      plan->deleted,
      (std::vector<std::string>{"checkpoint_0", "checkpoint_9"}));
  EXPECT_TRUE(plan_retention(entries, "checkpoint_11", {})->deleted.empty());
  EXPECT_FALSE(plan_retention(entries, "checkpoint_10", 5));
  EXPECT_FALSE(plan_retention(entries, "checkpoint_2", 1));
  EXPECT_TRUE(plan_retention(entries, "checkpoint_0", 1)->replaces);
  EXPECT_EQ(newest_of(entries)->name, "checkpoint_10");
}

}  // namespace manifest_test
}  // namespace accelerate::detail
