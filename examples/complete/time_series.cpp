// Forecasts a column of a CSV file: the next day, hour by hour, from a week.
//
//   python3 examples/complete/make_data.py series power.csv
//   accelerate-cpp launch --num_processes 2 build/bin/time_series
//       --data power.csv --inputs temperature --target power
//
// Rows must be in the order of time, at equal distances. The first 70 % train
// the net, the next 15 % choose the epoch, and the last 15 %, of which the net
// has seen nothing, judge it: the program ends with its error beside that of
// two baselines, yesterday's values and the last value. Columns are normalised
// inside the net, by buffers that checkpoints and series_run/best have, so what
// loads the weights gives it raw values. --resume continues.
#include <cmath>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <accelerate/accelerate.h>
#include <accelerate/datasets.h>

namespace {

namespace fs = std::filesystem;
using torch::Tensor;

struct Flags {
  fs::path data;
  std::vector<std::string> inputs = {"temperature"};
  std::string target = "power";
  std::int64_t past = 168;   // rows that the net sees
  std::int64_t future = 24;  // rows that it forecasts; also a season's length
  std::uint64_t epochs = 10;
  fs::path project_dir = "series_run";
  bool resume = false;
};

/// The rows of a table [time, columns], as samples: the rows of the past, and
/// the values of column 0 that follow.
struct Windows {
  Tensor table;
  std::int64_t past;
  std::int64_t future;

  [[nodiscard]] std::int64_t size() const {
    return table.size(0) - past - future + 1;
  }
  [[nodiscard]] std::pair<Tensor, Tensor> get(std::int64_t start) const {
    return {
        table.narrow(0, start, past),
        table.select(1, 0).narrow(0, start + past, future)};
  }
};

/// Reads the columns, the target first. Missing values become the last known
/// one of their column.
Tensor read_table(const Flags& flags) {
  std::vector<std::string> columns = {flags.target};
  columns.insert(columns.end(), flags.inputs.begin(), flags.inputs.end());
  const Tensor table = accelerate::CsvFile(flags.data).numbers(columns);
  const Tensor row = torch::arange(table.size(0)).unsqueeze(1);
  const Tensor known = torch::where(table.isnan(), 0, row);
  return table.gather(0, std::get<0>(known.cummax(0))).nan_to_num(0);
}

/// Raw rows [N, past, columns] give raw forecasts [N, future]: the net adds a
/// correction to the values of a season ago.
struct ForecasterImpl : torch::nn::Module {
  ForecasterImpl(std::int64_t past, std::int64_t columns, std::int64_t future)
      : mean(register_buffer("mean", torch::zeros({columns}))),
        deviation(register_buffer("deviation", torch::ones({columns}))),
        hidden(
            register_module("hidden", torch::nn::Linear(past * columns, 64))),
        out(register_module("out", torch::nn::Linear(64, future))) {}

  /// Takes the statistics of the data that may be seen.
  void normalise_by(const Tensor& table) {
    mean.copy_(table.mean(0));
    deviation.copy_(table.std(0).clamp_min(1e-6));
  }
  Tensor forward(const Tensor& rows) {
    const Tensor scaled = (rows - mean) / deviation;
    const std::int64_t future = out->options.out_features();
    const Tensor season_ago =
        scaled.select(2, 0).narrow(1, scaled.size(1) - future, future);
    const Tensor correction = out(torch::relu(hidden(scaled.flatten(1))));
    return (season_ago + correction) * deviation[0] + mean[0];
  }

  Tensor mean, deviation;
  torch::nn::Linear hidden, out;
};
TORCH_MODULE(Forecaster);

/// The mean absolute error of forecasts over all windows, on any number of
/// ranks; `forecast` takes the rows of the past.
template <class Loader, class Forecast>
double error_of(
    const accelerate::Accelerator& accelerator,
    Loader& loader,
    const Forecast& forecast) {
  const torch::NoGradGuard no_grad;
  accelerate::Mean error(accelerator);
  for (auto& [rows, wanted] : loader)
    error.update((forecast(rows) - wanted).abs());
  return error.compute();
}

void train(const Flags& flags) {
  accelerate::AcceleratorOptions options;
  options.project_configuration = {
      .project_dir = flags.project_dir.string(),
      .automatic_checkpoint_naming = true,
      .total_limit = 2};
  const accelerate::Accelerator accelerator(options);
  accelerate::set_seed(1);

  const Tensor table = read_table(flags);
  const std::int64_t first = table.size(0) * 70 / 100;
  const std::int64_t second = table.size(0) * 85 / 100;
  // A window of the later parts begins in the part before it, but forecasts
  // only rows of its own part.
  const auto windows = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t start = std::max<std::int64_t>(0, begin - flags.past);
    return Windows{
        table.narrow(0, start, end - start), flags.past, flags.future};
  };
  Forecaster net(flags.past, table.size(1), flags.future);
  net->normalise_by(table.narrow(0, 0, first));
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto [model, optimizer, loader, validation, test] = accelerator.prepare(
      net,
      adamw,
      accelerate::DataLoader(
          windows(0, first), {.batch_size = 32, .shuffle = true}),
      accelerate::DataLoader(windows(first, second), {.batch_size = 64}),
      accelerate::DataLoader(
          windows(second, table.size(0)), {.batch_size = 64}));

  double best = std::numeric_limits<double>::infinity();
  accelerator.register_for_checkpointing("best error", best);
  if (flags.resume && accelerator.resume())
    accelerator.print("resuming in epoch {}", loader.epoch());
  while (loader.epoch() < flags.epochs) {
    const auto epoch = loader.epoch();
    for (auto& [rows, wanted] : loader) {
      const Tensor error = torch::l1_loss(model(rows), wanted);
      accelerator.backward(error);
      accelerator.clip_grad_norm_(model, 10.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    const double error = error_of(accelerator, validation, model);
    accelerator.print("epoch {}: validation error {}", epoch, error);
    if (error < best) {
      best = error;
      accelerator.save_model(model, flags.project_dir / "best");
    }
    accelerator.save_state();
  }

  // As another program would use the weights: without the training data, whose
  // statistics come from the file.
  accelerator.load_model(model, flags.project_dir / "best");
  const auto yesterday = [&](const Tensor& rows) {
    return rows.select(2, 0).narrow(1, flags.past - flags.future, flags.future);
  };
  const auto last = [&](const Tensor& rows) {
    return rows.select(2, 0).narrow(1, flags.past - 1, 1);
  };
  accelerator.print(
      "error on unseen days: {}, of yesterday's values {}, of the last {}",
      error_of(accelerator, test, model),
      error_of(accelerator, test, yesterday),
      error_of(accelerator, test, last));
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Forecasts a column of a CSV file.");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", flags.data, "a CSV file")->required();
  app.add_option("--inputs", flags.inputs, "columns to forecast from, besides");
  app.add_option("--target", flags.target, "the column to forecast");
  app.add_option("--past", flags.past, "rows that the net sees");
  app.add_option("--future", flags.future, "rows that it forecasts");
  app.add_option("--epochs", flags.epochs);
  app.add_option("--project_dir", flags.project_dir);
  app.add_flag("--resume", flags.resume);
  CLI11_PARSE(app, argc, argv);
  try {
    train(flags);
  } catch (const std::exception& error) {
    std::cerr << "time_series: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
