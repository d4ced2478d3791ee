#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/model.h>
#include <accelerate/pipeline_layers.h>
#include <accelerate/pipeline_schedule.h>

namespace accelerate {

class Accelerator;

/// What the loss function of a pipeline returns for a micro-batch, and so how
/// the losses of micro-batches are combined.
enum class MicroBatchLoss {
  /// A mean over its samples: the step's loss is the mean over all samples.
  mean,
  /// A sum: the step's loss is the sum.
  sum,
};

/// How a model is divided into stages, and how they are scheduled. All ranks
/// must pass the same options. Unset and empty fields follow MegatronLMOptions
/// where that has settings for them, which can also turn one_f_one_b into
/// interleaved_1f1b.
struct PipelineOptions {
  /// The names of the first layer of each stage except the first. Empty: stages
  /// are as equal as possible in `costs`.
  std::vector<std::string> split_points = {};
  /// The cost of each layer, in any unit (time is best). Empty: the bytes of
  /// its parameters.
  std::vector<double> costs = {};
  /// The order in which ranks compute.
  PipelineScheduleKind schedule = PipelineScheduleKind::one_f_one_b;
  /// Stages per rank; above 1 with the schedules that say so. More: less idle
  /// time, more messages. Stage c * ranks + r is on rank r; with zero_bubble_v
  /// and dual_pipe_v, a rank's second stage is 2 * ranks - 1 - r. Unset: 2 if
  /// the schedule has exactly two, else 1.
  std::optional<int> num_chunks = std::nullopt;
  /// Number of micro-batches that a batch is divided into: the first ones have
  /// one sample more if it does not divide evenly, and a batch with fewer
  /// samples has one micro-batch per sample. More: less idle time, smaller
  /// products. Unset: one per rank of the pipeline, or one per stage with
  /// dual_pipe_v.
  std::optional<int> num_micro_batches = std::nullopt;
  /// How the losses of micro-batches become that of the batch.
  MicroBatchLoss micro_batch_loss = MicroBatchLoss::mean;
  /// A stage's outputs may have different shapes or dtypes in each micro-batch,
  /// as with sequences of different lengths. Costs a small message each, before
  /// which a rank cannot begin to receive the outputs. False: that is an error;
  /// only the number of samples may differ.
  bool shapes_may_change = false;
  /// Give all ranks of the pipeline the losses. Costs two small messages per
  /// step, and waiting for the last stage. Not needed if only that reads them.
  bool losses_on_all_ranks = true;
};

/// Options of one step or forward.
struct PipelineStepOptions {
  /// Keep the model's outputs, on the last stage. Costs memory for those of all
  /// micro-batches.
  bool return_outputs = false;
  /// Keep the outputs, and give them to all ranks of the pipeline. Costs a
  /// broadcast.
  bool gather_outputs = false;
  /// Overrides PipelineOptions::shapes_may_change in this step, for an
  /// evaluation with sequences of different lengths.
  std::optional<bool> shapes_may_change = std::nullopt;
};

/// Options of Pipeline::generate().
struct PipelineGenerateOptions {
  /// The most tokens that are added to a sequence.
  std::int64_t max_new_tokens = 20;
  /// A sequence ends with this token, and is padded with it to the longest one.
  /// Unset: sequences end at max_new_tokens.
  std::optional<std::int64_t> eos_token_id = std::nullopt;
  /// The layers cache what they computed for earlier tokens, for each
  /// micro-batch (current_micro_batch()), so that after the first forward they
  /// get only the last token. Empty the caches beforehand.
  bool has_cache = false;
};

/// The result of a step. Tensors have no graph.
struct PipelineResult {
  /// The loss of the whole batch, 0-d; undefined without a loss function, and,
  /// with losses_on_all_ranks off, on ranks other than the last.
  at::Tensor loss = {};
  /// The loss function's values, one per micro-batch.
  std::vector<at::Tensor> losses = {};
  /// The tensors that the last layer returned, with micro-batches concatenated
  /// along dimension 0; empty unless requested.
  PipelineTensors outputs = {};
  /// How the outputs were nested (outputs_as()).
  std::string output_structure = {};

  /// The outputs as the last layer returned them: a map, say.
  template <class T>
  [[nodiscard]] T outputs_as() const {
    return detail::pipeline_argument<T>(
        detail::kOutputsAs, {outputs, output_structure});
  }
};

namespace detail {

using PipelineLoss = std::function<
    at::Tensor(const PipelineValue& outputs, const PipelineValue& targets)>;

template <class Loss, class Outputs, class Targets>
at::Tensor call_loss(
    Loss& loss,
    const PipelineValue& outputs,
    const PipelineValue& targets,
    TypeList<Outputs, Targets>) {
  return loss(
      pipeline_argument<std::remove_cvref_t<Outputs>>(kLossFunction, outputs),
      pipeline_argument<std::remove_cvref_t<Targets>>(kLossFunction, targets));
}

template <class Loss>
PipelineLoss pipeline_loss(Loss loss) {
  return [loss = std::move(loss)](
             const PipelineValue& outputs,
             const PipelineValue& targets) mutable {
    if constexpr (std::is_pointer_v<Loss> || requires { &Loss::operator(); }) {
      return call_loss(loss, outputs, targets, ParametersOf<Loss>());
    } else {
      static_assert(
          std::is_invocable_r_v<at::Tensor, Loss&, at::Tensor, at::Tensor>,
          "the loss function must take what the last layer returns, and the "
          "targets, and return the loss; if it has several signatures, it "
          "takes two tensors");
      return call_loss(
          loss, outputs, targets, TypeList<at::Tensor, at::Tensor>());
    }
  };
}

}  // namespace detail

/// A model whose layers are divided among ranks, which compute micro-batches
/// one after another: each rank has consecutive layers, sends their outputs to
/// the next rank, and gets the gradients back. A cheap handle.
///
///     accelerate::Accelerator accelerator({.parallel = {.pipeline = 4}});
///     accelerate::Pipeline pipeline(
///         accelerator, net, {.num_micro_batches = 16});
///     torch::optim::AdamW adamw(pipeline.parameters());
///     auto [optimizer, loader] =
///         accelerator.prepare(adamw, accelerate::DataLoader(dataset));
///     for (auto& [inputs, labels] : loader) {
///       optimizer.zero_grad();
///       auto result = pipeline.step(
///           inputs, labels, [](torch::Tensor out, torch::Tensor labels) {
///             return torch::nn::functional::cross_entropy(out, labels);
///           });
///       optimizer.step();
///     }
///
/// step() takes the place of forward and Accelerator::backward(): gradients are
/// those of the whole batch, divided by the window, scaled with fp16, and
/// averaged over the ranks that read other data if the window ends, through the
/// communication hooks and while others are still computed. Autocast, sharding,
/// tensor parallelism, recomputation and clipping work inside a stage as
/// elsewhere. Checkpoints have the names of the whole model, and can be loaded
/// with a different number of stages.
///
/// All ranks of the pipeline must make the same calls, with batches of the same
/// size (a prepared loader gives them the same batches). If a rank throws, all
/// throw DistributedError with its reason, and the pipeline is unusable
/// afterwards.
class ACCELERATE_API Pipeline {
 public:
  /// Divides the layers among the ranks along `pipeline`, and prepares this
  /// rank's. Parameters of other ranks' layers lose their memory here: they
  /// become meta tensors. Collective. Throws ConfigError if the layers cannot
  /// be divided this way.
  Pipeline(
      const Accelerator& accelerator,
      const PipelineLayers& layers,
      const PipelineOptions& options = {});

  /// Runs forward and backward of a batch. `inputs` are what the first layer
  /// takes, `targets` what the loss compares outputs with: tensors, or tuples,
  /// vectors, optionals or maps of tensors, with samples along dimension 0; a
  /// rank that has neither the first nor the last stage reads only their size.
  /// `loss(outputs, targets)` is called on the last stage with a micro-batch of
  /// each, as its parameters take them (PipelineLayers::add).
  template <class Inputs, class Targets, class Loss>
  PipelineResult step(
      const Inputs& inputs,
      const Targets& targets,
      Loss loss,
      const PipelineStepOptions& options = {}) const {
    return run(
        batch(inputs, targets, std::move(loss), /*trains=*/true), options);
  }
  /// Runs the forwards and the loss, without gradients.
  template <class Inputs, class Targets, class Loss>
  PipelineResult evaluate(
      const Inputs& inputs,
      const Targets& targets,
      Loss loss,
      const PipelineStepOptions& options = {}) const {
    return run(
        batch(inputs, targets, std::move(loss), /*trains=*/false), options);
  }
  /// Returns the model's outputs without gradients, on the last stage or on all
  /// ranks.
  template <class Inputs>
  PipelineTensors forward(const Inputs& inputs, bool gather_outputs = false)
      const {
    return run({detail::pipeline_value(inputs), {}, nullptr, /*trains=*/false},
               {.return_outputs = true, .gather_outputs = gather_outputs})
        .outputs;
  }

  /// Generates tokens with a language model: [sequences, length + new tokens]
  /// on all ranks, from `tokens`, [sequences, length], which all ranks pass.
  /// `next(output)` is called on the last stage with what the last layer
  /// returned for a micro-batch, [sequences, tokens, vocabulary] say, and
  /// returns the next token of each sequence. Without it, the largest logit at
  /// the last position decides.
  at::Tensor generate(
      const at::Tensor& tokens,
      const PipelineGenerateOptions& options = {}) const;
  template <class Next>
  at::Tensor generate(
      const at::Tensor& tokens,
      Next next,
      const PipelineGenerateOptions& options = {}) const {
    return generate_tokens(
        tokens,
        [next = std::move(next)](const detail::PipelineValue& output) mutable {
          return detail::call_layer(
              "", next, output, detail::ParametersOf<Next>());
        },
        options);
  }

  /// The handle of this rank's layers, as prepare() returns it: for
  /// accumulate(), clip_grad_norm_(), saving and loading.
  [[nodiscard]] const Model<torch::nn::Module>& model() const;
  /// The parameters of this rank's layers, each once, for the optimizer.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  /// Puts this rank's layers into training mode, or out of it.
  void train(bool on = true) const { model().train(on); }
  /// Puts this rank's layers into evaluation mode.
  void eval() const { model().eval(); }

  /// Number of stages of the model.
  [[nodiscard]] int num_stages() const;
  /// Whether this rank reads the inputs.
  [[nodiscard]] bool has_first_stage() const;
  /// Whether this rank computes the loss.
  [[nodiscard]] bool has_last_stage() const;
  /// The names of the layers of each stage.
  [[nodiscard]] const std::vector<std::vector<std::string>>& stages() const;
  /// The stages, one per line, and a drawing of the schedule. Meant for people.
  [[nodiscard]] std::string describe() const;
  /// The actions of each rank of the pipeline, in order, including sends,
  /// receives, gathers and reductions, in PyTorch's notation: "4F0" is the
  /// forward of stage 4 and micro-batch 0, "4B0" its backward, "4I0" and "4W0"
  /// the halves of it; "4SEND_F0", "5RECV_F0", "4UNSHARD", "4REDUCE_GRAD",
  /// "4RESHARD". Meant for comparison; messages may also come earlier.
  [[nodiscard]] std::vector<std::vector<std::string>> actions() const;

 private:
  using PipelineSelect =
      std::function<detail::PipelineValue(const detail::PipelineValue&)>;
  struct State;
  class Step;
  struct Batch {
    detail::PipelineValue inputs;
    detail::PipelineValue targets;
    /// Null if there is none.
    detail::PipelineLoss loss;
    bool trains = true;
    /// Selects what is kept of a micro-batch's outputs; null: all.
    PipelineSelect select = nullptr;
  };

  template <class Inputs, class Targets, class Loss>
  static Batch
  batch(const Inputs& inputs, const Targets& targets, Loss loss, bool trains) {
    return {
        detail::pipeline_value(inputs),
        detail::pipeline_value(targets),
        detail::pipeline_loss(std::move(loss)),
        trains};
  }
  PipelineResult run(const Batch& batch, const PipelineStepOptions& options)
      const;
  at::Tensor generate_tokens(
      const at::Tensor& tokens,
      PipelineSelect next,
      const PipelineGenerateOptions& options) const;

  detail::KeptPtr<State> state_;
};

}  // namespace accelerate
