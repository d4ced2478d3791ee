// Programs that cannot be run are refused when they are loaded, all their problems at once.
#include <functional>
#include <string>

#include <gmock/gmock.h>

#include <accelerate/error.h>

#include "exported/recorded_program.h"
#include "exported/written_archive.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::refusals_test {

using nlohmann::json;

class ExportedRefusals : public ::testing::Test {
 protected:
  explicit ExportedRefusals(const char* program = "Tied")
      : archive(program_path(program)) {}

  ExportedModel load() {
    archive.write(directory / "model.pt2");
    return load_exported(directory / "model.pt2");
  }
  static json& nodes(json& program) {
    return program["graph_module"]["graph"]["nodes"];
  }

  TemporaryDirectory directory;
  EditedArchive archive;
};

TEST_F(ExportedRefusals, LoadsAnArchiveThatIsWrittenAgain) {
  auto model = load(), original = load_exported(program_path("Tied"));
  const auto x = torch::ones({4, 8});
  expect_same(model->forward(x)[0], original->forward(x)[0].detach(), "output");
}

TEST_F(ExportedRefusals, ListsEverythingThatIsNotSupported) {
  archive.edit([](json& program) {
    nodes(program)[0]["target"] = "torch.ops.torchvision.nms.default";
    nodes(program)[1]["target"] = "torch.ops.higher_order.flex_attention";
    nodes(program)[2]["inputs"][0]["arg"] = {
        {"as_custom_obj", {{"name", "x"}}}};
    auto node = nodes(program)[2];
    node["target"] = "math.gcd";
    nodes(program).push_back(node);
    node["target"] = "torch.ops.aten.from_file.default";
    nodes(program).push_back(node);
  });
  try {
    load();
    ADD_FAILURE() << "it was loaded";
  } catch (const ConfigError& error) {
    for (const char* what :
         {"cannot be run. It has",
          "arguments of kind as_custom_obj (torch.ops.aten.linear.default)",
          "the operator torchvision.nms.default, which no library of this "
          "program defines",
          "the higher-order operator higher_order.flex_attention",
          "the operator aten.from_file.default, which accesses files",
          "the function math.gcd"}) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(what));
    }
  }
  EXPECT_EQ(inspect_exported(directory / "model.pt2").unsupported.size(), 5U);
}

TEST_F(ExportedRefusals, ListsArgumentsThatAnOperatorDoesNotTake) {
  archive.edit([](json& program) {
    json node = nodes(program)[0];
    const json input = node["inputs"][0]["arg"];
    const auto add = [&](const char* target, const json& inputs) {
      node["target"] = target;
      node["inputs"] = inputs;
      nodes(program).push_back(node);
    };
    const auto given = [](const char* name, const json& value) {
      return json{{"name", name}, {"arg", value}, {"kind", 1}};
    };
    const json x = given("self", input);
    add("torch.ops.aten.add.Tensor", json::array({x}));
    add("torch.ops.aten.relu.default",
        json::array({x, given("slope", {{"as_float", 1.5}})}));
    add("torch.ops.aten.zeros_like.default",
        json::array({x, given("dtype", {{"as_int", 200}})}));
  });
  const char* const expected[] = {
      "torch.ops.aten.add.Tensor without its argument 'other'",
      "torch.ops.aten.relu.default with the unknown argument 'slope'",
      ("torch.ops.aten.zeros_like.default with a number for its argument "
       "'dtype'")};
  for (const char* what : expected) {
    expect_error<ConfigError>([&] { load(); }, what);
  }
}

TEST_F(ExportedRefusals, RefusesResultsThatAnOperatorDoesNotReturn) {
  archive.edit([](json& program) {
    auto& outputs = nodes(program)[1]["outputs"];
    outputs.push_back({{"as_tensor", {{"name", "second"}}}});
  });
  ExportedModel model = load();
  expect_error<CheckpointError>(
      [&] { model->forward(torch::ones({4, 8})); },
      "must return 2 values, but returns 1");
}

TEST_F(ExportedRefusals, RefusesAnotherMajorVersionByName) {
  archive.edit([](json& program) { program["schema_version"]["major"] = 9; });
  expect_error<ConfigError>(
      [&] { load(); },
      "must have version 8 of torch.export's format, which torch 2.11 to 2.15 "
      "write, but has version 9.17");
  archive.edit([](json& program) { program["schema_version"]["major"] = 8; });
  archive["archive_version"] = "1";
  expect_error<ConfigError>([&] { load(); }, "but has version 1");
}

TEST_F(ExportedRefusals, AcceptsUnknownFieldsOfALaterMinorVersion) {
  archive.edit([](json& program) {
    program["schema_version"]["minor"] = 99;
    program["new_field"] = {1, 2};
    nodes(program)[0]["another"] = "x";
  });
  EXPECT_EQ(load()->parameters().size(), 7U);
}

TEST_F(ExportedRefusals, RefusesPickledAndSparseTensors) {
  const auto table = "data/weights/model_weights_config.json";
  archive.edit(table, [](json& weights) {
    weights["config"]["fc.weight"]["use_pickle"] = true;
  });
  expect_error<ConfigError>([&] { load(); }, "'fc.weight'");
  archive.edit(table, [](json& weights) {
    weights["config"]["fc.weight"]["use_pickle"] = false;
    weights["config"]["fc.weight"]["tensor_meta"]["layout"] = 1;
  });
  expect_error<ConfigError>([&] { load(); }, "it is not dense");
}

TEST_F(ExportedRefusals, RefusesWeightsOutsideTheirFiles) {
  const auto table = "data/weights/model_weights_config.json";
  const auto set = [&](const char* key, json value) {
    archive.edit(table, [&](json& weights) {
      weights["config"]["fc.weight"]["tensor_meta"][key] = std::move(value);
    });
  };
  set("storage_offset", {{"as_int", 1}});
  expect_error<CheckpointError>(
      [&] { load(); },
      "it reaches to element 64 of its file 'weight_0', which has only 64");
  set("storage_offset", {{"as_int", -1}});
  expect_error<CheckpointError>([&] { load(); }, "do not fit together");
  set("storage_offset", {{"as_int", 0}});
  set("sizes", {{{"as_int", std::int64_t{1} << 62}}, {{"as_int", 8}}});
  expect_error<CheckpointError>([&] { load(); }, "it is too large");
}

TEST_F(ExportedRefusals, RefusesAnArchiveWithSomeOfItsValues) {
  archive.erase("data/weights/weight_1");
  expect_error<CheckpointError>([&] { load(); }, "lacks the values of '");
}

TEST_F(ExportedRefusals, RefusesFilesThatLieUponEachOther) {
  archive["data/weights/weight_0"] = std::string(1 << 16, '\0');
  archive["data/weights/weight_2"] = archive["data/weights/weight_0"];
  archive.shares_equal_entries = true;
  // Aligned files are mapped; of these offsets, at most one is aligned.
  int num_refused = 0;
  for (const char* shift : {"", "x"}) {
    archive["data/sample_inputs/model.pt"] = shift;
    try {
      load();
    } catch (const CheckpointError& error) {
      EXPECT_THAT(
          error.what(), ::testing::HasSubstr("its files must not overlap"));
      ++num_refused;
    }
  }
  EXPECT_GE(num_refused, 1);
}

TEST_F(ExportedRefusals, RefusesDamage) {
  const std::string program = archive["models/model.json"];
  archive["models/model.json"] = program.substr(0, program.size() / 2);
  expect_error<CheckpointError>([&] { load(); }, "cannot be read");
  archive["models/model.json"] = program;
  archive.edit(
      [](json& value) { value["graph_module"]["graph"]["nodes"] = 3; });
  expect_error<CheckpointError>([&] { load(); }, "cannot be read");
  archive["models/model.json"] = program;
  archive.edit([](json& value) {
    value["graph_module"]["signature"]["input_specs"].erase(0);
  });
  expect_error<CheckpointError>([&] { load(); }, "its graph has");
  archive["models/model.json"] = program;
  archive["byteorder"] = "big";
  expect_error<CheckpointError>(
      [&] { load(); }, "must be little-endian, but is big");
  archive["byteorder"] = "little";
  archive.erase("archive_format");
  expect_error<CheckpointError>(
      [&] { load(); }, "must be an archive of torch.export.save()");
}

TEST_F(ExportedRefusals, RefusesNamesOfNothing) {
  for (const char* name : {"", ".", "fc.", "a..b"}) {
    EditedArchive changed(program_path("Tied"));
    changed.edit("data/weights/model_weights_config.json", [&](json& weights) {
      auto& table = weights["config"];
      table[name] = table["unused.bias"];
      table[name]["tensor_meta"]["requires_grad"] = false;
    });
    changed.write(directory / "model.pt2");
    expect_error<CheckpointError>(
        [&] { static_cast<void>(load_exported(directory / "model.pt2")); },
        "cannot be read");
  }
}

TEST_F(ExportedRefusals, NamesTheProgramsOfAnArchive) {
  archive.write(directory / "model.pt2");
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(
            load_exported(directory / "model.pt2", {.model = "decode"}));
      },
      "model.pt2 (model), but is 'decode'");
}

}  // namespace accelerate::testing::refusals_test
