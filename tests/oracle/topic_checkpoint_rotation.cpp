#include <filesystem>

#include <accelerate/accelerate.h>

#include "oracle/oracle.h"
#include "support/temporary_directory.h"

namespace accelerate::oracle {

namespace topic_checkpoint_rotation {

namespace fs = std::filesystem;

// A program that saves; its only weight is the save's number.
class Program {
 public:
  Program(const fs::path& directory, const Json& input, std::int64_t iteration)
      : accelerator_(options(directory, input, iteration)),
        net_(torch::nn::LinearOptions(1, 1).bias(false)),
        model_(accelerator_.prepare(net_)) {}

  const Accelerator& accelerator() const { return accelerator_; }
  void set(int number) {
    const torch::NoGradGuard no_grad;
    net_->weight.fill_(number);
  }
  int value() const { return net_->weight.item<int>(); }
  static AcceleratorOptions options(
      const fs::path& directory,
      const Json& input,
      std::int64_t iteration) {
    AcceleratorOptions options;
    options.world = {.rank = 0, .size = 1};
    options.project_configuration = {
        .project_dir = directory.string(),
        .automatic_checkpoint_naming = true,
        .iteration = iteration};
    if (!input.at("total_limit").is_null()) {
      options.project_configuration.total_limit =
          input.at("total_limit").get<int>();
    }
    return options;
  }

 private:
  Accelerator accelerator_;
  torch::nn::Linear net_;
  Model<torch::nn::LinearImpl> model_;
};

Json listing(const fs::path& base) {
  std::vector<std::string> names;
  if (fs::exists(base)) {
    for (const auto& entry : fs::directory_iterator(base)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The checkpoint with the lowest number.
std::optional<std::string> lowest(const fs::path& base) {
  std::optional<std::string> found;
  int least = 0;
  for (const Json& name : listing(base)) {
    const std::string text = name;
    if (!text.starts_with("checkpoint_")) continue;
    const int number = std::stoi(text.substr(11));
    if (found && number >= least) continue;
    found = text;
    least = number;
  }
  return found;
}

}  // namespace topic_checkpoint_rotation

Json run_checkpoint_rotation(const Json& input) {
  using namespace topic_checkpoint_rotation;
  const testing::TemporaryDirectory directory;
  const fs::path base = directory / "checkpoints";
  auto program = std::make_unique<Program>(directory.path(), input, 0);
  int num_saves = 0;
  Json steps = Json::array();
  for (const Json& operation : input.at("operations")) {
    const std::string what = operation.at("do");
    Json step = Json::object();
    const Accelerator& accelerator = program->accelerator();
    try {
      if (what == "save") {
        program->set(num_saves + 1);
        step["returned"] = accelerator.save_state().path().filename().string();
        ++num_saves;
      } else if (what == "save_to") {
        program->set(num_saves + 1);
        const fs::path elsewhere =
            directory / operation.at("name").get<std::string>();
        step["returned"] =
            accelerator.save_state(elsewhere).path().filename().string();
        ++num_saves;
      } else if (what == "load") {
        program->set(-1);
        accelerator.load_state();
        step["loaded_save"] = program->value();
      } else if (what == "set_iteration") {
        accelerator.checkpoints().set_iteration(
            operation.at("value").get<std::int64_t>());
      } else if (what == "restart") {
        program = std::make_unique<Program>(
            directory.path(), input, operation.at("value").get<std::int64_t>());
      } else if (what == "remove") {
        fs::remove_all(base / operation.at("name").get<std::string>());
      } else if (what == "make_directory") {
        const fs::path made = base / operation.at("name").get<std::string>();
        const auto from = lowest(base);
        if (from && !fs::exists(made)) {
          fs::copy(base / *from, made, fs::copy_options::recursive);
          step["copied_from"] = *from;
        } else {
          step["copied_from"] = nullptr;
        }
      } else {
        throw NotBuilt(what);
      }
    } catch (const Error& error) {
      step["error"] = error.what();
    }
    step["checkpoints"] = listing(base);
    step["iteration"] = program->accelerator()
                            .checkpoints()
                            .project_configuration()
                            .iteration.value_or(0);
    steps.push_back(std::move(step));
  }
  return {{"steps", std::move(steps)}};
}

}  // namespace accelerate::oracle
