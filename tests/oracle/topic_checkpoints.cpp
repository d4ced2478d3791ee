#include <filesystem>

#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/weights.h>

#include "checkpoint/load/source.h"
#include "oracle/files.h"
#include "oracle/training.h"

namespace accelerate::oracle {

namespace topic_checkpoints {

namespace fs = std::filesystem;

// Random numbers drawn from the generator state in each file.
Json random_numbers(const fs::path& directory) {
  Json all = Json::object();
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("random_states_")) continue;
    const int rank = std::stoi(name.substr(14));
    const auto source = detail::open_checkpoint(directory, rank, false);
    const at::Tensor state =
        source.rank_state->get<StateDict>("random").get<at::Tensor>("cpu");
    at::Generator generator = at::detail::createCPUGenerator();
    const auto draw = [&](const auto& make) {
      generator.set_state(state);
      return describe_tensor(make()).at("data");
    };
    const auto options = at::TensorOptions().dtype(at::kFloat);
    all[name] = {
        {"rand_float32",
         draw([&] { return at::rand({5}, generator, options); })},
        {"rand_float64", draw([&] {
           return at::rand({5}, generator, options.dtype(at::kDouble));
         })},
        {"randn_float32",
         draw([&] { return at::randn({5}, generator, options); })},
        {"randint_0_1000", draw([&] {
           return at::randint(
               0, 1000, {5}, generator, options.dtype(at::kLong));
         })},
        {"randperm_10", draw([&] {
           return at::randperm(10, generator, options.dtype(at::kLong));
         })}};
  }
  return all;
}

// Loads the directory into a module with zero tensors of these names. Names
// that the files lack are tied to one that is present.
Json loaded_model(const fs::path& directory, const Json& state_dict) {
  const auto saved = load_state_dict(directory);
  struct Holder : torch::nn::Module {};
  Holder root;
  std::map<std::string, at::Tensor> made;
  std::map<std::string, at::Tensor> by_digest;
  for (const Json& entry : state_dict) {
    const std::string name = entry[0];
    const std::string digest = entry[1].at("sha256");
    if (!saved.contains(name)) continue;
    made[name] = at::zeros(
        entry[1].at("shape").get<std::vector<std::int64_t>>(),
        dtype_named(entry[1].at("dtype")));
    by_digest[digest] = made[name];
  }
  for (const Json& entry : state_dict) {
    const std::string name = entry[0];
    if (!made.contains(name)) {
      made[name] = by_digest.at(entry[1].at("sha256").get<std::string>());
    }
    // Finds or makes the modules on the path to the tensor.
    torch::nn::Module* module = &root;
    std::string rest = name;
    while (rest.find('.') != std::string::npos) {
      const std::string step = rest.substr(0, rest.find('.'));
      rest = rest.substr(step.size() + 1);
      const auto children = module->named_children();
      const auto* const child = children.find(step);
      module = child != nullptr
          ? child->get()
          : module->register_module(step, std::make_shared<Holder>()).get();
    }
    module->register_buffer(rest, made[name]);
  }
  load_model(root, directory);
  Json dict = Json::array();
  for (const Json& entry : state_dict) {
    const std::string name = entry[0];
    dict.push_back({name, describe_tensor(made[name])});
  }
  return dict;
}

}  // namespace topic_checkpoints

Json run_checkpoints(const Json& input) {
  using namespace topic_checkpoints;
  const fs::path directory = input.at("path").get<std::string>();
  Json found{
      {"directory", input.at("directory")},
      {"files", describe_files(directory)}};
  if (input.at("kind") == "save_state") {
    found["random"] = random_numbers(directory);
    Json training = input.at("training");
    Json resumed = run_training_from(
        training, Resume{directory, input.at("save_after").get<int>()});
    resumed.erase("gradient_norms");
    found["resumed"] = std::move(resumed);
  } else if (input.at("kind") == "save_model") {
    found["state_dict"] = loaded_model(directory, input.at("state_dict"));
  }
  return found;
}

}  // namespace accelerate::oracle
