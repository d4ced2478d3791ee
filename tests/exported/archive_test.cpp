// The reader of torch.export's archives, without LibTorch.
#include "format/exported/exported_archive.h"

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "exported/written_archive.h"
#include "format/exported/describe.h"
#include "format/exported/treespec.h"
#include "support/expect_error.h"

namespace accelerate::testing::archive_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::filesystem::path program_path(const std::string& name) {
  return std::filesystem::path(ACCELERATE_EXPORTED_PROGRAMS) / (name + ".pt2");
}

TEST(ExportedArchive, ReadsWhatPythonWrote) {
  const detail::ExportedArchive archive(program_path("Tied"));
  EXPECT_THAT(archive.models(), ElementsAre("model"));
  const detail::ExportedProgram program = archive.program("model");
  EXPECT_EQ(program.device, "cpu");
  EXPECT_TRUE(program.torch_version.starts_with("2.11.0"));
  ASSERT_EQ(program.graph.nodes.size(), 3U);
  const detail::ExportedNode& node = program.graph.nodes[1];
  EXPECT_EQ(node.target, "torch.ops.aten.linear.default");
  EXPECT_EQ(node.module, "frozen");
  EXPECT_EQ(*node.inputs[1].argument.reference(), "p_frozen_weight");
  EXPECT_THAT(
      node.source, HasSubstr("return self.tied(self.frozen(self.fc(x)))"));
  EXPECT_EQ(program.classes.at("frozen"), "Linear");
  const detail::ExportedTensors weights = archive.weights("model");
  EXPECT_EQ(weights.at("fc.weight").file, weights.at("tied.weight").file);
  EXPECT_FALSE(weights.at("frozen.weight").requires_grad);
  EXPECT_EQ(weights.at("fc.weight").bytes->size(), 256U);
  EXPECT_FALSE(archive.evaluation());
  EXPECT_TRUE(detail::ExportedArchive(program_path("Branch")).evaluation());
}

TEST(ExportedArchive, ReadsWhatPython2_15Wrote) {
  const auto of = [](const std::string& name) {
    return detail::ExportedArchive(program_path(name)).program("model");
  };
  const detail::ExportedProgram newer = of("2.15/Tied"), older = of("Tied");
  EXPECT_TRUE(newer.torch_version.starts_with("2.15.0"));
  ASSERT_EQ(newer.graph.nodes.size(), older.graph.nodes.size());
  for (std::size_t i = 0; i < newer.graph.nodes.size(); ++i) {
    EXPECT_EQ(newer.graph.nodes[i].target, older.graph.nodes[i].target);
    EXPECT_EQ(newer.graph.nodes[i].module, older.graph.nodes[i].module);
  }
  EXPECT_EQ(newer.classes, older.classes);
}

// torch.export invents one for nodes outside of all modules.
TEST(ExportedArchive, KnowsNoModulesButThoseOfTheModel) {
  std::size_t num_programs = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(ACCELERATE_EXPORTED_PROGRAMS)) {
    if (file.path().extension() != ".pt2") continue;
    const detail::ExportedArchive archive(file.path());
    const auto facts = archive.facts();
    ASSERT_TRUE(facts) << file.path();
    std::map<std::string, std::string> classes(
        facts->modules.begin(), facts->modules.end());
    for (const auto& [name, type] : archive.program("model").classes)
      EXPECT_EQ(classes[name], type) << name << " of " << file.path();
    ++num_programs;
  }
  EXPECT_GE(num_programs, 30U);
}

TEST(ExportedArchive, NamesRangesOfSizes) {
  EXPECT_EQ(
      detail::symbol_in("Symbol('s77', positive=True, integer=True)"), "s77");
  EXPECT_EQ(detail::symbol_in("Mul(Integer(2), Symbol('s77'))"), "");
  EXPECT_EQ(detail::symbol_in("Symbol('s"), "");
  EXPECT_EQ(detail::range_text({2, 64}), "2 to 64");
  EXPECT_EQ(detail::range_text({3, 3}), "3");
  EXPECT_EQ(detail::range_text({2, detail::ExportedRange().max}), "2 or more");
  EXPECT_EQ(detail::range_text({}), "any size");
}

std::string spec(
    const std::string& type,
    const std::string& context,
    const std::string& children) {
  return R"({"type": )" + type + R"(, "context": )" + context +
      R"(, "children_spec": [)" + children + "]}";
}

const std::string kLeaf = spec("null", "null", "");

TEST(Treespec, NamesLeavesAsPythonDoes) {
  const detail::NamedTupleFields fields{{"Pair", {"first", "second"}}};
  const auto names = [&](const std::string& root) {
    return detail::result_names("[1, " + root + "]", fields, "x.pt2");
  };
  EXPECT_THAT(names(kLeaf), ElementsAre(""));
  EXPECT_THAT(
      names(spec("\"builtins.tuple\"", "\"null\"", kLeaf + "," + kLeaf)),
      ElementsAre("0", "1"));
  EXPECT_THAT(
      names(spec(
          "\"builtins.dict\"",
          R"("[\"a\", \"b\"]")",
          kLeaf + "," +
              spec(
                  "\"collections.namedtuple\"",
                  "\"Pair\"",
                  kLeaf + "," + kLeaf))),
      ElementsAre("a", "b.first", "b.second"));
  // A ModelOutput of some versions has its keys at the end of a list.
  EXPECT_THAT(
      names(spec(
          "\"X\"",
          R"("[\"X\", [\"loss\", \"logits\"]]")",
          kLeaf + "," + kLeaf)),
      ElementsAre("loss", "logits"));
  expect_error<CheckpointError>([&] { names("3"); }, "x.pt2 cannot be read");
  expect_error<CheckpointError>([&] { names("{"); }, "x.pt2 cannot be read");
}

// torch.export.load() takes everything in models/ for a program with weights.
TEST(ExportedArchive, HasItsSecondGraphAmongExtraFilesOrTheModels) {
  EditedArchive edited(program_path("Branch"));
  const std::string graph = edited["models/eval.json"];
  edited.erase("models/eval.json");
  edited["extra/accelerate_eval.json"] = graph;
  std::string bytes = edited.bytes();
  const detail::ExportedArchive archive(std::as_bytes(std::span(bytes)), "x");
  EXPECT_TRUE(archive.evaluation());
  EXPECT_THAT(archive.models(), ElementsAre("model"));
}

TEST(ExportedArchive, MayHaveAProgramThatItsUserCallsEval) {
  EditedArchive edited(program_path("Branch"));
  edited["data/weights/eval_weights_config.json"] =
      edited["data/weights/model_weights_config.json"];
  std::string bytes = edited.bytes();
  const detail::ExportedArchive archive(std::as_bytes(std::span(bytes)), "x");
  EXPECT_FALSE(archive.evaluation());
  EXPECT_THAT(archive.models(), ElementsAre("eval", "model"));
}

TEST(ExportedArchive, RefusesFactsOfANewerHelper) {
  EditedArchive edited(program_path("Tied"));
  edited.edit(
      "extra/accelerate.json", [](auto& facts) { facts["format"] = 2; });
  std::string bytes = edited.bytes();
  const detail::ExportedArchive archive(std::as_bytes(std::span(bytes)), "x");
  expect_error<ConfigError>(
      [&] { static_cast<void>(archive.facts()); },
      "must have format 1, but has format 2");
}

TEST(ExportedArchive, IsReadOrRefusedWhateverByteIsDamaged) {
  EditedArchive edited(program_path("Branch"));
  // Weights and sample inputs are not read as text.
  edited.erase("data/sample_inputs/model.pt");
  std::string bytes = edited.bytes();
  for (std::size_t i = 0; i < bytes.size(); i += 7) {
    const char before = bytes[i];
    bytes[i] = static_cast<char>(before ^ 0x41);
    try {
      const detail::ExportedArchive archive(
          std::as_bytes(std::span(bytes)), "x");
      for (const std::string& model : archive.models()) {
        static_cast<void>(archive.weights(model));
        static_cast<void>(archive.constants(model));
        static_cast<void>(archive.facts());
      }
    } catch (const Error&) {
      // Refused, as expected.
    }
    bytes[i] = before;
  }
}

}  // namespace accelerate::testing::archive_test
