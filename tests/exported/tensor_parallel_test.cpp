// Exported models whose layers tensor parallelism divides, attention's by heads.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>
#include <gmock/gmock.h>

#include "exported/recorded_program.h"
#include "exported/written_archive.h"
#include "parallel/split_problem.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::tensor_parallel_test {

using split_problem::Case;
using split_problem::expect_like_one_process;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using torch::Tensor;

using TpPlan = std::vector<std::pair<std::string, std::string>>;

/// What Hugging Face's Llama, Qwen and Mistral have, below `prefix`.
TpPlan decoder_plan(const std::string& prefix = "net.") {
  TpPlan plan;
  const std::string layer = prefix + "model.layers.*.";
  for (const char* name : {"q_proj", "k_proj", "v_proj"})
    plan.emplace_back(layer + "self_attn." + name, "colwise");
  plan.emplace_back(layer + "self_attn.o_proj", "rowwise");
  for (const char* name : {"gate_proj", "up_proj"})
    plan.emplace_back(layer + "mlp." + name, "colwise");
  plan.emplace_back(layer + "mlp.down_proj", "rowwise");
  plan.emplace_back(prefix + "model.embed_tokens", "embedding_rowwise");
  return plan;
}

TpPlan with_head(TpPlan plan, const std::string& prefix = "net.") {
  plan.emplace_back(prefix + "lm_head", "colwise_gather_output");
  return plan;
}

/// A program within a module of this program.
struct Net : torch::nn::Module {
  static constexpr int kSampleDim = 0;
  explicit Net(const std::string& program)
      : net(load_exported(program_path(program))) {
    // Ranks of a replica draw other numbers than one process.
    net->eval();
    register_module("net", net);
  }
  Tensor forward(const Tensor& ids) {
    return net->forward(ids, torch::ones_like(ids), ids)["logits"];
  }
  static Tensor inputs(int step, std::int64_t num_samples) {
    auto generator = at::detail::createCPUGenerator(7 + step);
    return torch::randint(
        0, 64, {num_samples, step % 2 == 0 ? 8 : 12}, generator, torch::kLong);
  }
  ExportedModel net;
};

/// A classifier whose eval() has a graph of its own.
struct Bert : Net {
  Bert() : Net("bert") {}
  Tensor forward(const Tensor& ids) {
    const Tensor labels = ids.select(1, 0).remainder(2);
    return net->forward(ids, torch::ones_like(ids), labels)["logits"];
  }
};

/// A decoder whose linear layers are Conv1D.
struct Gpt2 : Net {
  Gpt2() : Net("gpt2") {}
  Tensor forward(const Tensor& ids) { return net->forward(ids)[0]; }
};

#define ACCELERATE_NET(Name, program) \
  struct Name : Net {                 \
    Name() : Net(program) {}          \
  }
ACCELERATE_NET(Llama, "llama");
ACCELERATE_NET(LlamaEager, "llama_eager");
ACCELERATE_NET(LlamaBf16, "llama_bf16");
ACCELERATE_NET(LlamaTied, "llama_tied");
ACCELERATE_NET(Mistral, "mistral");
ACCELERATE_NET(Qwen2, "qwen2");
ACCELERATE_NET(Qwen3, "qwen3");
ACCELERATE_NET(Gemma2, "gemma2");
ACCELERATE_NET(Phi3, "phi3");
ACCELERATE_NET(Mixtral, "mixtral");
#undef ACCELERATE_NET

Case on(const ParallelizePlan& plan, int tensor = 2) {
  return {.parallel = {.tensor = tensor, .parallelize_plan = plan}, .steps = 4};
}

TEST(ExportedTensorParallel, TrainsLlamaByHeads) {
  expect_like_one_process<Llama>(on(parse_tp_plan(with_head(decoder_plan()))));
  expect_like_one_process<LlamaEager>(
      on(parse_tp_plan(with_head(decoder_plan()))));
}

TEST(ExportedTensorParallel, TrainsMistral) {
  expect_like_one_process<Mistral>(
      on(parse_tp_plan(with_head(decoder_plan()))));
}

TEST(ExportedTensorParallel, TrainsQwenWhoseHeadsHaveNorms) {
  expect_like_one_process<Qwen2>(on(parse_tp_plan(with_head(decoder_plan()))));
  // The gradients of norms of heads are summed, whether the plan says so or
  // not.
  TpPlan plan = with_head(decoder_plan());
  expect_like_one_process<Qwen3>(on(parse_tp_plan(plan)));
  plan.emplace_back(
      "net.model.layers.*.self_attn.?_norm", "replicated_with_grad_allreduce");
  expect_like_one_process<Qwen3>(on(parse_tp_plan(plan)));
}

TEST(ExportedTensorParallel, TrainsTiedEmbeddings) {
  expect_like_one_process<LlamaTied>(on(parse_tp_plan(decoder_plan()), 4));
  expect_like_one_process<Gemma2>(on(parse_tp_plan(decoder_plan())));
}

TEST(ExportedTensorParallel, TrainsAnEncoderWithBiasesInItsGraphForEval) {
  const std::string layer = "net.bert.encoder.layer.*.";
  expect_like_one_process<Bert>(
      on({{layer + "attention.self.query", ColwiseParallel{}},
          {layer + "attention.self.key", ColwiseParallel{}},
          {layer + "attention.self.value", ColwiseParallel{}},
          {layer + "attention.output.dense", RowwiseParallel{}},
          {layer + "intermediate.dense", ColwiseParallel{}},
          {layer + "output.dense", RowwiseParallel{}},
          {"**.word_embeddings", RowwiseParallel{}}}));
}

TEST(ExportedTensorParallel, TrainsModelsWhosePlanGathers) {
  const Phi3 model;
  const InferredPlan inferred = infer_parallelize_plan(model, 2);
  expect_like_one_process<Phi3>(on(inferred.plan));
}

TEST(ExportedTensorParallel, TrainsWithWholeExperts) {
  TpPlan plan = with_head(decoder_plan());
  std::erase_if(plan, [](const auto& entry) {
    return entry.first.find(".mlp.") != std::string::npos;
  });
  expect_like_one_process<Mixtral>(on(parse_tp_plan(plan)));
}

TEST(ExportedTensorParallel, TrainsRecomputed) {
  Case each = on(parse_tp_plan(with_head(decoder_plan())));
  each.parallel.activation_checkpointing = ActivationCheckpointingOptions{
      .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
      .transformer_cls_names_to_wrap = {"LlamaDecoderLayer"}};
  expect_like_one_process<Llama>(each);
}

TEST(ExportedTensorParallel, TrainsInBf16) {
  Case each = on(parse_tp_plan(with_head(decoder_plan())));
  each.precision = Precision::bf16;
  each.tolerance = 3e-2;
  expect_like_one_process<LlamaBf16>(each);
}

TEST(ExportedTensorParallel, TrainsInReplicasAndShards) {
  Case each = on(parse_tp_plan(with_head(decoder_plan())));
  each.parallel.replicate = 2;
  expect_like_one_process<Llama>(each);
  each.parallel.replicate = std::nullopt;
  each.parallel.shard = 2;
  each.parallel.fully_sharded = FullyShardedDataParallelOptions{
      .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
      .transformer_cls_names_to_wrap =
          std::vector<std::string>{"LlamaDecoderLayer"}};
  expect_like_one_process<Llama>(each);
}

// Norms, residuals and embeddings on slices of the sequence.
TEST(ExportedTensorParallel, TrainsOnSlicesOfTheSequence) {
  const accelerate::Shard sequence{1};
  const ParallelizePlan plan{
      {"net.model.embed_tokens", RowwiseParallel{.output_layouts = sequence}},
      {"net.model.layers.*.self_attn.?_proj",
       ColwiseParallel{.input_layouts = sequence}},
      {"net.model.layers.*.mlp.down_proj",
       RowwiseParallel{.output_layouts = sequence}},
      {"net.model.layers.*.mlp.*_proj",
       ColwiseParallel{.input_layouts = sequence}},
      {"net.lm_head",
       ColwiseParallel{
           .input_layouts = sequence, .output_layouts = Replicate{}}}};
  ParallelizePlan ordered{
      {"net.model.layers.*.self_attn.o_proj",
       RowwiseParallel{.output_layouts = sequence}}};
  ordered.insert(ordered.end(), plan.begin(), plan.end());
  expect_like_one_process<Llama>(on(ordered));
  // The norms' gradients are summed as well if the plan says so.
  ordered.emplace_back("net.model.norm", SequenceParallel{});
  ordered.emplace_back("net.model.layers.*.*_layernorm", SequenceParallel{});
  expect_like_one_process<Llama>(on(ordered));
}

TEST(ExportedTensorParallel, DividesHeadsUnevenlyIfThePlanSaysHowMany) {
  ParallelizePlan plan;
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    plan.emplace_back(
        std::string("net.model.layers.*.self_attn.") + name,
        ColwiseParallel{.num_heads = 4});
  }
  plan.emplace_back(
      "net.model.layers.*.self_attn.o_proj", RowwiseParallel{.num_heads = 4});
  expect_like_one_process<LlamaTied>(on(plan, 3));
}

TEST(ExportedTensorParallel, TrainsWithAdamW) {
  const auto losses_on = [](int num_ranks) {
    std::vector<double> losses;
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      Accelerator accelerator(
          {.parallel =
               {.tensor = num_ranks,
                .parallelize_plan =
                    parse_tp_plan(with_head(decoder_plan(""), ""))},
           .world = world});
      ExportedModel net = load_exported(program_path("llama"));
      torch::optim::AdamW adamw(net->parameters(), 1e-3);
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      for (int step = 0; step < 6; ++step) {
        const Tensor ids = Net::inputs(step, 4);
        const auto loss = model(ids, torch::ones_like(ids), ids)["loss"];
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        if (accelerator.is_main_process())
          losses.push_back(loss.item<double>());
      }
      accelerator.finish();
    });
    return losses;
  };
  expect_near(losses_on(2), losses_on(1), 2e-5);
}

// Runs on 2 ranks with a prepared Llama and its own plan.
void with_llama(
    const std::function<void(Accelerator&, Model<ExportedModelImpl>&)>& run) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator(
        {.parallel =
             {.tensor = 2,
              .parallelize_plan =
                  parse_tp_plan(with_head(decoder_plan(""), ""))},
         .world = world});
    auto model = accelerator.prepare(load_exported(program_path("llama")));
    run(accelerator, model);
    accelerator.finish();
  });
}

TEST(ExportedTensorParallel, SavesAndLoadsWholeWeights) {
  const TemporaryDirectory directory;
  ExportedModel alone = load_exported(program_path("llama"));
  const Tensor ids = Net::inputs(0, 4);
  const Tensor logits =
      alone->forward(ids, torch::ones_like(ids), ids)["logits"].detach();
  with_llama([&](Accelerator& accelerator, auto& model) {
    accelerator.save_model(model, directory.path());
  });
  const safetensors::Reader reader(directory / "model.safetensors");
  for (const auto& item : alone->named_parameters()) {
    ASSERT_TRUE(reader.contains(item.key())) << item.key();
    const auto& shape = reader.info(item.key()).shape;
    EXPECT_EQ(
        std::vector<std::int64_t>(shape.begin(), shape.end()),
        item.value().sizes().vec());
  }
  with_llama([&](Accelerator& accelerator, auto& model) {
    const auto found = [&] {
      return model(ids, torch::ones_like(ids), ids)["logits"].detach();
    };
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& slice : model.parameters()) slice.mul_(0.5);
    }
    EXPECT_FALSE(torch::allclose(found(), logits, 1e-3, 1e-3));
    accelerator.load_model(model, directory.path());
    EXPECT_TRUE(torch::allclose(found(), logits, 1e-5, 1e-6));
  });
}

TEST(ExportedTensorParallel, RunsWithFullParametersInBetween) {
  with_llama([&](Accelerator&, auto& model) {
    const Tensor ids = Net::inputs(0, 4);
    const auto logits = [&] {
      return model.module()
          ->forward(ids, torch::ones_like(ids), ids)["logits"]
          .detach();
    };
    const Tensor divided = model(ids, torch::ones_like(ids), ids)["logits"];
    {
      const auto full = model.full_parameters();
      EXPECT_TRUE(torch::allclose(logits(), divided, 1e-5, 1e-6));
    }
    EXPECT_TRUE(torch::allclose(
        model(ids, torch::ones_like(ids), ids)["logits"], divided, 0, 0));
  });
}

// What prepare() says about a plan.
std::string refusal_of(
    const std::string& program,
    const ParallelizePlan& plan,
    int num_ranks = 2) {
  std::string text;
  try {
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel = {.tensor = num_ranks, .parallelize_plan = plan},
           .world = world});
      (void)accelerator.prepare(load_exported(program_path(program)));
    });
  } catch (const ConfigError& error) {
    text = error.what();
  }
  return text;
}

TEST(ExportedTensorParallel, RefusesHeadsThatRanksDoNotDivide) {
  const std::string few =
      refusal_of("llama", parse_tp_plan(decoder_plan("")), 4);
  EXPECT_THAT(
      few,
      HasSubstr("whose number must be divisible by 4 ranks, but is 2, but "
                "tensor parallelism divides dimension 2 of one, a result of "
                "\"model.layers.0.self_attn.k_proj\""));
  EXPECT_THAT(few, HasSubstr("of 'model.layers.0.self_attn' (transformers/"));
  EXPECT_THAT(
      refusal_of("llama_tied", parse_tp_plan(decoder_plan("")), 3),
      HasSubstr("must be divisible by 3 ranks, but is 8"));
}

// Queries, keys and values in one matrix are gathered.
TEST(ExportedTensorParallel, TrainsGpt2WhoseWeightsAreInputsByOutputs) {
  const ParallelizePlan plan{
      {"**.mlp.c_fc", ColwiseParallel{}},
      {"**.mlp.c_proj", RowwiseParallel{}},
      {"**.attn.c_attn", ColwiseParallel{.output_layouts = Replicate{}}},
      {"**.attn.c_proj", RowwiseParallel{.input_layouts = Replicate{}}},
      {"**.wte", RowwiseParallel{}}};
  expect_like_one_process<Gpt2>(on(plan));
  expect_like_one_process<Gpt2>(on(plan, 3));
  Case each = on(plan);
  each.parallel.shard = 2;
  each.parallel.fully_sharded = FullyShardedDataParallelOptions{
      .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
      .transformer_cls_names_to_wrap = std::vector<std::string>{"GPT2Block"}};
  expect_like_one_process<Gpt2>(each);
  each.parallel.fully_sharded->activation_checkpointing = true;
  expect_like_one_process<Gpt2>(each);
}

TEST(ExportedTensorParallel, RefusesPlansOfConv1DWithAReason) {
  // Slices of the three matrices would not be the heads of a rank.
  EXPECT_THAT(
      refusal_of("gpt2", {{"**.c_attn", ColwiseParallel{}}}),
      HasSubstr("must get its inputs whole along the dimension on which it "
                "works, but tensor parallelism divides dimension 2 of one, a "
                "result of \"net.transformer.h.0.attn.c_attn\""));
  EXPECT_THAT(
      refusal_of("gpt2", {{"**.mlp.c_proj", RowwiseParallel{}}}),
      HasSubstr("as the plan of \"net.transformer.h.0.mlp.c_proj\" says, but "
                "is whole"));
  EXPECT_THAT(
      refusal_of(
          "gpt2",
          {{"**.mlp.c_fc", ColwiseParallel{.input_layouts = Shard{1}}}}),
      HasSubstr("is a Conv1D, which multiplies tokens of all sequences as rows "
                "of one matrix, so only features are split"));
  EXPECT_THAT(
      refusal_of(
          "gpt2",
          {{"**.c_attn",
            ColwiseParallel{.num_heads = 2, .projections = {16, 16, 16}}}}),
      HasSubstr("is a Conv1D, whose weight is inputs x outputs, but "
                "projections are rows"));
}

TEST(ExportedTensorParallel, RefusesLayersWithoutTheirPartner) {
  const auto without = [](const std::string& name) {
    TpPlan plan = decoder_plan("");
    std::erase_if(plan, [&](const auto& entry) {
      return entry.first.find(name) != std::string::npos;
    });
    return refusal_of("llama", parse_tp_plan(plan));
  };
  EXPECT_THAT(
      without("o_proj"),
      HasSubstr("must get its inputs whole along the dimension on which it "
                "works, but tensor parallelism divides dimension 2"));
  EXPECT_THAT(without("k_proj"), HasSubstr("divided alike"));
  EXPECT_THAT(
      without("gate_proj"),
      HasSubstr("of 'model.layers.0.mlp' (transformers/"));
  EXPECT_THAT(
      refusal_of(
          "llama", {{"model.layers.*.mlp.down_proj", RowwiseParallel{}}}),
      HasSubstr("must be divided along dimension 2 at [0, 12, 24], as the plan "
                "of \"model.layers.0.mlp.down_proj\" says, but is whole"));
  EXPECT_THAT(
      refusal_of("llama", {{"lm_head", ColwiseParallel{}}}),
      HasSubstr("cross_entropy_loss"));
  EXPECT_THAT(
      refusal_of("qwen3", {{"model.norm", SequenceParallel{}}}),
      HasSubstr("must be used with values that tensor parallelism divides"));
}

TEST(ExportedTensorParallel, RefusesHeadsThatAllRanksNeed) {
  // The position bias of all heads is a parameter's.
  EXPECT_THAT(
      refusal_of(
          "t5",
          {{"encoder.block.*.layer.0.SelfAttention.?", ColwiseParallel{}}}),
      HasSubstr("must get its inputs"));
}

TEST(ExportedTensorParallel, ReadsAPlanAsHuggingFaceWritesIt) {
  const ParallelizePlan plan = parse_tp_plan(
      {{"a", "colwise"},
       {"b", "colwise_rep"},
       {"c", "rowwise"},
       {"d", "rowwise_split_input"},
       {"e", "replicate"},
       {"f", "sequence_parallel"}});
  EXPECT_THAT(
      plan,
      ElementsAre(
          Pair("a", ParallelStyle(ColwiseParallel{})),
          Pair(
              "b",
              ParallelStyle(ColwiseParallel{.output_layouts = Replicate{}})),
          Pair("c", ParallelStyle(RowwiseParallel{})),
          Pair(
              "d",
              ParallelStyle(RowwiseParallel{.input_layouts = Replicate{}})),
          Pair("f", ParallelStyle(SequenceParallel{}))));
  expect_error<ConfigError>(
      [] { (void)parse_tp_plan({{"experts", "moe_tp_experts"}}); },
      "but are \"moe_tp_experts\" of \"experts\"");
}

TEST(ExportedTensorParallel, KnowsTheModelsOwnPlan) {
  const ExportedModel tied = load_exported(program_path("llama_tied"));
  const ParallelizePlan plan = tied->tensor_parallel_plan();
  // lm_head has no parameters of its own.
  EXPECT_THAT(
      plan.front(),
      Pair("model.embed_tokens", ParallelStyle(RowwiseParallel{})));
  EXPECT_THAT(
      plan.back(),
      Pair("model.layers.*.mlp.down_proj", ParallelStyle(RowwiseParallel{})));
  EXPECT_EQ(plan.size(), 8);
  const InferredPlan inferred = infer_parallelize_plan(*tied, 2);
  EXPECT_EQ(inferred.plan.size(), 15);
  EXPECT_THAT(
      inferred.explain(),
      HasSubstr("model.layers.1.self_attn.k_proj: ColwiseParallel (the model's "
                "tp_plan says so)"));
  EXPECT_THAT(
      inferred.explain(),
      HasSubstr("model.norm: whole (the model's tp_plan leaves it out)"));
  expect_like_one_process<LlamaTied>(
      on(infer_parallelize_plan(LlamaTied(), 2).plan));
  EXPECT_TRUE(
      load_exported(program_path("cnn"))->tensor_parallel_plan().empty());
}

}  // namespace accelerate::testing::tensor_parallel_test
