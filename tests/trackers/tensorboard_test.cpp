#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/tensorboard_reader.h"
#include "trackers/media/utf8_text.h"
#include "trackers/tensorboard/event_file.h"
#include "trackers/tracker_request.h"

namespace accelerate {
namespace {
namespace tensorboard_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LogTime kTime{.step = 7, .seconds = 1'700'000'001.5};

std::vector<std::filesystem::path> event_files(
    const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class Tensorboard : public ::testing::Test {
 protected:
  std::unique_ptr<GeneralTracker> tracker(TrackedValues init_kwargs = {}) {
    detail::TrackerRequest request;
    request.project_name = "run";
    request.logging_dir = directory_.path();
    request.init_kwargs = std::move(init_kwargs);
    request.begin = 1'700'000'000.25;
    request.warn = [this](const std::string& line) {
      warnings_.push_back(line);
    };
    return detail::make_tensorboard(request);
  }

  /// Returns the events of the run's only file after its version.
  std::vector<testing::TensorboardEvent> events() {
    const auto files = event_files(directory_ / "run");
    EXPECT_EQ(files.size(), 1U);
    auto all = testing::read_tensorboard_events(files.at(0));
    all.erase(all.begin());
    return all;
  }

  /// Returns the only value that `log` writes.
  testing::TensorboardValue value_of(
      const std::function<void(GeneralTracker&)>& log) {
    const auto made = tracker();
    made->start();
    log(*made);
    made->finish();
    const auto all = events();
    EXPECT_EQ(all.size(), 1U);
    EXPECT_EQ(all.at(0).step, 7);
    EXPECT_EQ(all.at(0).wall_time, 1'700'000'001.5);
    return all.at(0).values.at(0);
  }

  testing::TemporaryDirectory directory_;
  std::vector<std::string> warnings_;
};

TEST(MaskedChecksum, IsThatOfTheSpecification) {
  // RFC 3720, B.4, rotated by 15 bits and offset by 0xa282ead8.
  const auto masked = [](std::uint32_t checksum) {
    return ((checksum >> 15U) | (checksum << 17U)) + 0xa282ead8U;
  };
  EXPECT_EQ(detail::masked_crc32c(std::string(32, '\0')), masked(0x8a9136aa));
  EXPECT_EQ(detail::masked_crc32c(std::string(32, '\xff')), masked(0x62a8ab43));
  EXPECT_EQ(detail::masked_crc32c("123456789"), masked(0xe3069283));
}

TEST_F(Tensorboard, WritesWhatWasLoggedWhenFlushed) {
  const auto made = tracker();
  made->start();
  EXPECT_TRUE(events().empty());
  made->log({{"loss", 0.5}}, kTime, {});
  made->log({{"loss", 0.25}}, {.step = 8, .seconds = 1}, {});
  made->flush();
  const auto all = events();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].values.at(0).tag, "loss");
  EXPECT_EQ(all[1].values.at(0).scalar, 0.25F);
  EXPECT_EQ(all[1].step, 8);
}

TEST_F(Tensorboard, AddsAFileWhenTheRunGoesOn) {
  for (int session = 0; session < 2; ++session) {
    const auto made = tracker();
    made->start();
    made->log({{"loss", session}}, kTime, {});
    made->finish();
  }
  const auto files = event_files(directory_ / "run");
  ASSERT_EQ(files.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_THAT(
        files[i].filename().string(),
        HasSubstr("events.out.tfevents.1700000000."));
    const auto all = testing::read_tensorboard_events(files[i]);
    EXPECT_EQ(all.at(0).file_version, "brain.Event:2");
    EXPECT_EQ(all.at(1).values.at(0).scalar, static_cast<float>(i));
  }
}

TEST_F(Tensorboard, PurgesWhatARestartRepeats) {
  const auto made =
      tracker({{"purge_step", 40}, {"filename_suffix", ".again"}});
  made->start();
  const auto all = events();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_TRUE(all[0].is_session_start);
  EXPECT_EQ(all[0].step, 40);
  EXPECT_EQ(event_files(directory_ / "run").at(0).extension(), ".again");
}

TEST_F(Tensorboard, KeepsDoublesWhenAskedTo) {
  const auto value = value_of([](GeneralTracker& made) {
    made.log(
        {{"loss", 0.1}},
        kTime,
        {{"new_style", true}, {"double_precision", true}});
  });
  EXPECT_EQ(value.plugin, "scalars");
  EXPECT_THAT(value.tensor_numbers, ElementsAre(0.1));
}

TEST_F(Tensorboard, EscapesTagsThatAreNotUtf8) {
  const auto value = value_of(
      [](GeneralTracker& made) { made.log({{"gr\xfc\xdf", 1}}, kTime, {}); });
  EXPECT_EQ(value.tag, "gr\\xfc\\xdf");
}

TEST_F(Tensorboard, TakesTheTimeThatIsGiven) {
  const auto made = tracker();
  made->start();
  made->log({{"loss", 1}}, kTime, {{"walltime", 12.5}});
  made->finish();
  EXPECT_EQ(events().at(0).wall_time, 12.5);
}

TEST_F(Tensorboard, WritesHistogramsByUpperEdges) {
  TrackedHistogram histogram;
  histogram.edges = {-1, 0, 2};
  histogram.counts = {3, 1};
  histogram.min = -0.5;
  histogram.max = 1.5;
  histogram.sum = 0.25;
  histogram.sum_squares = 3;
  histogram.num = 4;
  const auto value = value_of([&](GeneralTracker& made) {
    EXPECT_TRUE(made.log_histogram("weights", histogram, kTime, {}));
  });
  ASSERT_TRUE(value.histogram);
  EXPECT_THAT(value.histogram->limits, ElementsAre(-1, 0, 2));
  EXPECT_THAT(value.histogram->counts, ElementsAre(0, 3, 1));
  EXPECT_EQ(value.histogram->min, -0.5);
  EXPECT_EQ(value.histogram->max, 1.5);
  EXPECT_EQ(value.histogram->num, 4);
  EXPECT_EQ(value.histogram->sum, 0.25);
  EXPECT_EQ(value.histogram->sum_squares, 3);
}

TEST_F(Tensorboard, WritesTablesAsMarkdown) {
  const TrackedTable table{{"name", "score"}, {{"a|b\nc", 1}, {"d", 0.5}}};
  const auto value = value_of([&](GeneralTracker& made) {
    EXPECT_TRUE(made.log_table("results", table, kTime, {}));
  });
  EXPECT_EQ(value.tag, "results/text_summary");
  EXPECT_THAT(
      value.tensor_texts,
      ElementsAre("| name | score |\n| --- | --- |\n"
                  "| a\\|b<br>c | 1 |\n| d | 0.5 |"));
}

TEST_F(Tensorboard, ReadsImagesInTheLayoutThatIsGiven) {
  // A red pixel above a green one.
  const std::string values("\xff\0\0\0\xff\0", 6);
  const TrackedImages images{{2, 1, 3}, "CHW", false, values};
  const auto value = value_of([&](GeneralTracker& made) {
    made.log_images("picture", images, kTime, {{"dataformats", "HWC"}});
  });
  ASSERT_TRUE(value.image);
  EXPECT_EQ(value.image->height, 2);
  EXPECT_EQ(value.image->width, 1);
  EXPECT_EQ(testing::decode_image(value.image->file).bytes, values);
}

TEST_F(Tensorboard, ArrangesABatchInRowsOfEight) {
  const std::string grays("\x01\x02\x03\x04\x05\x06\x07\x08\x09", 9);
  const TrackedImages images{{9, 1, 1, 1}, "NHWC", false, grays};
  const auto value = value_of([&](GeneralTracker& made) {
    made.log_images("batch", images, kTime, {});
  });
  const auto decoded = testing::decode_image(value.image->file);
  EXPECT_EQ(decoded.height, 2);
  EXPECT_EQ(decoded.width, 8);
  std::string expected;
  for (const char gray : grays) expected.append(3, gray);
  expected.append(21, '\0');
  EXPECT_EQ(decoded.bytes, expected);
}

TEST_F(Tensorboard, LimitsFloatsToThoseOfPixels) {
  const std::vector<float> numbers{-1, 0.5F, 1, 2, std::nanf(""), 0.999F};
  std::string values(numbers.size() * sizeof(float), '\0');
  std::memcpy(values.data(), numbers.data(), values.size());
  const TrackedImages images{{1, 6}, "HW", true, values};
  const auto value = value_of([&](GeneralTracker& made) {
    made.log_images("gray", images, kTime, {});
  });
  std::string red;
  const std::string all = testing::decode_image(value.image->file).bytes;
  for (std::size_t i = 0; i < all.size(); i += 3) red += all[i];
  EXPECT_EQ(red, std::string("\0\x7f\xff\xff\0\xfe", 6));
}

TEST_F(Tensorboard, RefusesImagesOfAnotherShape) {
  const auto made = tracker();
  made->start();
  testing::expect_error<Error>(
      [&] { made->log_images("x", {{2, 2}, "HWC", false, "1234"}, kTime, {}); },
      "shape [2, 2] have the layout \"HWC\"");
  testing::expect_error<Error>(
      [&] { made->log_images("x", {{2, 3}, "HW", false, "1234"}, kTime, {}); },
      "have 4 bytes of values, but must have 6");
}

TEST_F(Tensorboard, WarnsOnceAboutWhatItCannotLog) {
  const auto made = tracker();
  made->start();
  for (int i = 0; i < 3; ++i) {
    made->log({{"list", TrackedValue::List{1, 2}}, {"none", {}}}, kTime, {});
  }
  made->flush();
  EXPECT_TRUE(events().empty());
  ASSERT_EQ(warnings_.size(), 2U);
  EXPECT_THAT(warnings_[0], HasSubstr("unlike \"list\""));
  EXPECT_THAT(warnings_[1], HasSubstr("unlike \"none\""));
}

TEST_F(Tensorboard, ListsTheArgumentsThereAre) {
  testing::expect_error<ConfigError>(
      [&] { tracker({{"log_dir", "x"}}); },
      "tensorboard's init_kwargs have \"log_dir\"; there are comment, "
      "purge_step, max_queue, flush_secs, filename_suffix");
  testing::expect_error<ConfigError>(
      [&] { tracker({{"purge_step", "soon"}}); },
      "\"purge_step\" must be a number, but is soon");
  detail::TrackerRequest nowhere;
  nowhere.project_name = "run";
  testing::expect_error<ConfigError>(
      [&] { detail::make_tensorboard(nowhere); }, "logging_dir");
}

TEST_F(Tensorboard, SaysWhyAFileCannotBeWritten) {
  detail::replace_file(directory_ / "run", "a file");
  const auto made = tracker();
  testing::expect_error<Error>(
      [&] { made->start(); }, "cannot be written: Not a directory");
}

TEST_F(Tensorboard, ReadsBackWhateverWasLogged) {
  EXPECT_TRUE(rc::check([&] {
    const testing::TemporaryDirectory place;
    detail::TrackerRequest request;
    request.project_name = "run";
    request.logging_dir = place.path();
    const auto made = detail::make_tensorboard(request);
    made->start();
    const auto names = *rc::gen::container<std::vector<std::string>>(
        rc::gen::nonEmpty<std::string>());
    std::vector<std::pair<std::int64_t, float>> points;
    for (const std::string& name : names) {
      points.emplace_back(
          *rc::gen::arbitrary<std::int64_t>(), *rc::gen::arbitrary<float>());
      made->log(
          {{name, points.back().second}},
          {.step = points.back().first, .seconds = 2},
          {});
    }
    made->finish();
    const auto all =
        testing::read_tensorboard_events(event_files(place / "run").at(0));
    RC_ASSERT(all.size() == names.size() + 1);
    for (std::size_t i = 0; i < names.size(); ++i) {
      RC_ASSERT(all[i + 1].step == points[i].first);
      RC_ASSERT(all[i + 1].values.at(0).tag == detail::utf8_text(names[i]));
      RC_ASSERT(all[i + 1].values.at(0).scalar == points[i].second);
    }
  }));
}

}  // namespace tensorboard_test
}  // namespace
}  // namespace accelerate
