// Regression on a CSV file: columns by name, missing values, a column of
// categories, and the score on rows that were held out.
#include "task.h"

#include <filesystem>
#include <fstream>

#include <accelerate/datasets.h>

// Writes the task as a spreadsheet would export it: names in the first row, ';'
// between fields, and "NA" for every hundredth y.
void write_file(const std::string& path) {
  std::vector<std::int64_t> all(500);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::int64_t>(i);
  const auto [points, values] = training_data().get_batch(all);
  std::ofstream file(path);
  file << "x;y;side;value\n";
  for (const std::int64_t i : all) {
    const double x = points[i][0].item<double>();
    const double y = points[i][1].item<double>();
    file << x << ';' << (i % 100 == 1 ? "NA" : std::to_string(y)) << ';'
         << (x < 0 ? "left" : "right") << ';' << values[i].item<double>()
         << '\n';
  }
}

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  const std::string path = "points.csv";
  if (accelerator.is_main_process()) write_file(path);
  accelerator.wait_for_everyone();

  const accelerate::CsvFile file(path, {.delimiter = ';'});
  torch::Tensor inputs = file.numbers({"x", "y"});
  const torch::Tensor targets = file.numbers({"value"});
  // 0 for "left" and 1 for "right", in alphabetical order.
  const accelerate::Categories sides = file.categories("side");
  // A missing value is NaN: here it becomes the mean of its column.
  const torch::Tensor is_missing = inputs.isnan();
  inputs = torch::where(is_missing, inputs.nanmean(0, true), inputs);
  char line[200];
  std::snprintf(
      line,
      sizeof line,
      "%lld rows, %lld missing values",
      static_cast<long long>(file.num_rows()),
      static_cast<long long>(is_missing.sum().item<std::int64_t>()));
  accelerator.print(line);
  expect(
      is_missing.sum().item<std::int64_t>() == 5 &&
          !inputs.isnan().any().item<bool>(),
      "the five missing values must be found and replaced");
  expect(
      sides.names == std::vector<std::string>{"left", "right"} &&
          sides.codes.equal((inputs.select(1, 0) >= 0).to(torch::kLong)),
      "categories must be numbered in alphabetical order");

  // Every fifth row is held out.
  const torch::Tensor is_held_out =
      torch::arange(file.num_rows()).remainder(5).eq(0);
  const auto rows = [&](const torch::Tensor& which) {
    return accelerate::TensorDataset(
        inputs.index({which}),
        targets.index({which}),
        sides.codes.index({which}));
  };
  Net net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, loader, evaluation] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          rows(is_held_out.logical_not()), {.batch_size = 20, .shuffle = true}),
      accelerate::DataLoader(rows(is_held_out), {.batch_size = 20}));
  for (int epoch = 0; epoch < 30; ++epoch) {
    for (auto& [points, values, side] : loader) {
      optimizer.zero_grad();
      accelerator.backward(torch::mse_loss(model(points), values));
      optimizer.step();
    }
  }

  const torch::NoGradGuard no_grad;
  std::vector<accelerate::Mean> errors;
  for (std::size_t i = 0; i < sides.names.size(); ++i)
    errors.emplace_back(accelerator);
  for (auto& [points, values, side] : evaluation) {
    const torch::Tensor squares = (model(points) - values).square().flatten();
    for (std::size_t i = 0; i < errors.size(); ++i) {
      const torch::Tensor is_here = side.eq(static_cast<std::int64_t>(i));
      errors[i].update(squares, {.mask = is_here});
    }
  }
  for (std::size_t i = 0; i < errors.size(); ++i) {
    std::snprintf(
        line,
        sizeof line,
        "error on held-out rows, %s: %.4f",
        sides.names[i].c_str(),
        errors[i].compute());
    accelerator.print(line);
  }
  report(accelerator, net);
  accelerator.end_training();
}
