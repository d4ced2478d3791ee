// Exported models end with the weights of one process under every technique of
// the parity suite (tests/parity/techniques_test.cpp) that applies to them.
// ACCELERATE_TEST_AXES=all tries all precisions, windows and numbers of ranks.
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "exported/recorded_program.h"
#include "support/parity_techniques.h"

namespace accelerate::testing::exported_parity_test {

struct Case {
  std::string net;
  Technique technique;
  Precision precision = Precision::no;
  int accumulation = 1;
  int num_ranks = 1;
};

void PrintTo(const Case& tested, std::ostream* out) {
  *out << tested.technique.name << " of " << tested.net;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& tested = info.param;
  return tested.net + "_" + tested.technique.name + "_" +
      std::string(accelerate::name_of(tested.precision)) + "_window" +
      std::to_string(tested.accumulation) + "_ranks" +
      std::to_string(tested.num_ranks);
}

// Why a technique is not for a net; empty if it is.
std::string obstacle(const Case& tested) {
  const Technique& technique = tested.technique;
  if (technique.axis == Axis::context)
    return "attention has a mask for all positions, which the program makes";
  if (technique.has_experts) return "experts are those of ExpertLayer";
  if (technique.is_ms_amp ||
      technique.float8_attention != Float8Attention::none)
    return "its precision is fp8, which uses_test.cpp tests";
  if (technique.master_weights && tested.net == "gpt2")
    return "there is no program with parameters in 16 bits";
  if (tested.net == "gpt2" && tested.precision != Precision::no)
    return "its program was exported in fp32";
  if (technique.master_weights && tested.precision != Precision::bf16)
    return "the program with parameters in 16 bits has them in bf16";
  return {};
}

// The program of a net for a precision: casts are part of it.
std::filesystem::path program_of(
    const std::string& net,
    const Technique& technique,
    Precision precision) {
  if (technique.master_weights) return program_path("llama_in_bf16", "2.15");
  if (net == "llama" && precision == Precision::bf16)
    return program_path("llama_bf16");
  return program_path(net);
}

Weights train(const Case& tested) {
  Technique technique = tested.technique;
  // Attention has head counts of all ranks.
  if (technique.axis == Axis::tensor && tested.net == "gpt2") {
    technique.parallel.parallelize_plan = ParallelizePlan{
        {"**.mlp.c_fc", ColwiseParallel{}},
        {"**.mlp.c_proj", RowwiseParallel{}}};
  } else if (technique.axis == Axis::tensor) {
    technique.parallel.parallelize_plan = ParallelizePlan{
        {"model.layers.*.mlp.gate_proj", ColwiseParallel{}},
        {"model.layers.*.mlp.up_proj", ColwiseParallel{}},
        {"model.layers.*.mlp.down_proj", RowwiseParallel{}}};
  }
  ParityRun run = run_of(
      technique, tested.precision, tested.accumulation, tested.num_ranks);
  run.is_quiet = true;  // Programs are also run in other precisions.
  constexpr std::int64_t kVocabulary = 64;
  torch::manual_seed(3);
  const at::IntArrayRef sizes{kParitySteps * kParityBatch, kParityLength};
  const ParityData data{
      torch::randint(kVocabulary, sizes), torch::randint(kVocabulary, sizes)};
  const auto make = [&] {
    ExportedModel net =
        load_exported(program_of(tested.net, technique, tested.precision));
    net->eval();  // Ranks draw other random numbers than one process does.
    return net;
  };
  const auto scores = [](const auto& model, const torch::Tensor& ids) {
    if (model->input_names().size() == 1) return logits_of(model(ids));
    return logits_of(model(ids, torch::ones_like(ids), ids));
  };
  return train_parity(run, data, make, scores).weights;
}

// Computed once for all cases that expect them.
const Weights& weights_of_one_process(Case tested) {
  static std::map<std::tuple<std::string, bool, Precision, int>, Weights> known;
  const bool has_masters = tested.technique.master_weights;
  const std::tuple key(
      tested.net, has_masters, tested.precision, tested.accumulation);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  tested.technique = {.name = "plain", .master_weights = has_masters};
  tested.num_ranks = 1;
  return known.emplace(key, train(tested)).first->second;
}

class ExportedTechniqueParity : public ::testing::TestWithParam<Case> {};

TEST_P(ExportedTechniqueParity, EndsWithTheWeightsOfOneProcess) {
  const Case& tested = GetParam();
  if (const std::string reason = obstacle(tested); !reason.empty())
    GTEST_SKIP() << reason;
  const Weights& one = weights_of_one_process(tested);
  const Weights many = train(tested);
  ASSERT_EQ(many.size(), one.size());
  for (const auto& [name, tensor] : one) {
    ASSERT_TRUE(many.contains(name)) << name;
    const double difference =
        (many.at(name) - tensor).abs().max().item<double>();
    EXPECT_LE(difference, tolerance_of(tested.precision)) << name;
    EXPECT_TRUE(std::isfinite(difference)) << name;
  }
}

std::vector<Case> cases() {
  const char* const wanted = std::getenv("ACCELERATE_TEST_AXES");
  const bool all = wanted != nullptr && std::string_view(wanted) == "all";
  std::vector<Case> cases;
  for (const std::string net : {"gpt2", "llama"}) {
    int number = 0;
    for (const Technique& technique : techniques()) {
      const Precision own =
          technique.master_weights ? Precision::bf16 : Precision::no;
      // The windows and ranks that are tried of one technique.
      const int own_window = ++number % 2 == 0 ? 1 : 3;
      const int own_ranks = number % 6 == 0 ? 4 : 2;
      for (const auto precision :
           {Precision::no, Precision::bf16, Precision::fp16}) {
        for (const int window : {1, 3}) {
          for (const int ranks : {1, 2, 4}) {
            const bool is_own =
                precision == own && window == own_window && ranks == own_ranks;
            if ((all || is_own) && ranks % technique.divides_ranks == 0)
              cases.push_back({net, technique, precision, window, ranks});
          }
        }
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ExportedTechniqueParity,
    ::testing::ValuesIn(cases()),
    case_name);

}  // namespace accelerate::testing::exported_parity_test
