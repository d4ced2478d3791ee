// accelerate-cpp inspect: what a program from Python contains.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/tool.h"
#include "exported/written_archive.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace inspect_command_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_tool;
using ::testing::StartsWith;

std::string program(const std::string& name) {
  return std::string(EXPORTED_CORPUS) + "/" + name + ".pt2";
}

TEST(Inspect, DescribesAProgram) {
  const auto tied = run_tool({"inspect", program("tied")});
  EXPECT_EQ(tied.code, 0) << tied.err;
  EXPECT_THAT(
      tied.out,
      AllOf(
          StartsWith("exported by torch 2.11.0"),
          HasSubstr("without autocast, one graph for train() and eval()\n"
                    "164 parameters, with weights\n"
                    "inputs\n"
                    "  x float32 (2 to 32, 8)\n"
                    "outputs (unnamed)\n"
                    "modules\n"
                    "  4 Linear\n"
                    "  1 Tied\n"
                    "operators\n"
                    "  3 aten.linear.default\n")));
  EXPECT_THAT(
      run_tool({"inspect", program("branch")}).out,
      HasSubstr("with a graph of its own for eval()"));
}

TEST(Inspect, RefusesWhatItCannotReadOrFind) {
  const auto other = run_tool({"inspect", program("tied"), "--model", "x"});
  EXPECT_NE(other.code, 0);
  EXPECT_THAT(other.err, HasSubstr("(model), but is 'x'"));
  const testing::TemporaryDirectory directory;
  std::ifstream whole(program("tied"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(whole), {}};
  std::ofstream(directory / "torn.pt2", std::ios::binary)
      << bytes.substr(0, bytes.size() / 2);
  const auto torn = run_tool({"inspect", (directory / "torn.pt2").string()});
  EXPECT_NE(torn.code, 0);
  EXPECT_THAT(torn.err, HasSubstr("torn.pt2 cannot be read"));
}

TEST(Inspect, FailsForAProgramThatCannotBeRun) {
  const testing::TemporaryDirectory directory;
  testing::EditedArchive archive(program("tied"));
  archive.edit([](nlohmann::json& changed) {
    changed["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = {
        {"as_custom_obj", {{"name", "x"}}}};
  });
  archive.write(directory / "model.pt2");
  const auto result = run_tool({"inspect", (directory / "model.pt2").string()});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(
      result.out,
      HasSubstr("not supported\n"
                "  arguments of kind as_custom_obj "
                "(torch.ops.aten.linear.default)\n"));
}

}  // namespace inspect_command_test
}  // namespace accelerate
