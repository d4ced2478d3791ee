#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "engines/deepspeed/deepspeed.h"
#include "oracle/plugins/plugins.h"

namespace accelerate::oracle::topic_plugins {

namespace {

std::string encode_base64(const std::string& text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += 3) {
    std::uint32_t bits = 0;
    const std::size_t count = std::min<std::size_t>(3, text.size() - at);
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8 |
          (i < count ? static_cast<unsigned char>(text[at + i]) : 0);
    }
    for (std::size_t i = 0; i < 4; ++i)
      out.push_back(i <= count ? kDigits[bits >> (18 - 6 * i) & 63] : '=');
  }
  return out;
}

Json auto_or(const Json& value) {
  return value == kAuto ? Json("auto") : value;
}

}  // namespace

Json run_deepspeed(const Json& input) {
  const Json& args = input.at("args");
  DeepSpeedOptions given;
  const auto number = [&](const char* name) -> std::optional<Json> {
    if (!args.contains(name)) return std::nullopt;
    return args.at(name) == "auto" ? Json(kAuto) : args.at(name);
  };
  if (const auto value = number("gradient_accumulation_steps"))
    given.gradient_accumulation_steps = value->get<int>();
  if (const auto value = number("gradient_clipping"))
    given.gradient_clipping = value->get<double>();
  read(args, "zero_stage", given.zero_stage);
  read(args, "offload_optimizer_device", given.offload_optimizer_device);
  read(args, "offload_param_device", given.offload_param_device);
  read(args, "offload_optimizer_nvme_path", given.offload_optimizer_nvme_path);
  read(args, "offload_param_nvme_path", given.offload_param_nvme_path);
  read(args, "zero3_init_flag", given.zero3_init_flag);
  read(args, "transformer_moe_cls_names", given.transformer_moe_cls_names);
  if (args.contains("hf_ds_config")) {
    const std::string text = args.at("hf_ds_config").dump();
    given.hf_ds_config =
        args.at("hf_ds_config_form") == "base64" ? encode_base64(text) : text;
  }
  detail::DeepSpeedConfig config(
      given,
      settings_of(
          input, {{"zero3_save_16bit_model", "zero3_save_16bit_model"}}),
      environment_of(input));
  if (!input.at("set_mixed_precision").is_null()) {
    config.set_mixed_precision(
        input.at("set_mixed_precision").get<std::string>());
  }
  if (!input.at("fill").is_null())
    config.fill(input.at("fill"), input.at("must_match"));

  const detail::DeepSpeedFields& found = config.options();
  // Accelerate calls it offloading if stage 2 or 3 names another device.
  const auto is_off_device = [&](const char* path) {
    const Json* const device = config.find(path);
    return device != nullptr && (*device == "cpu" || *device == "nvme");
  };
  const bool is_offload =
      (config.zero_stage() == 2 || config.zero_stage() == 3) &&
      (is_off_device("zero_optimization.offload_optimizer.device") ||
       is_off_device("zero_optimization.offload_param.device"));
  Json json = config.json();
  if (std::isinf(json.at("steps_per_print").get<double>()))
    json["steps_per_print"] = "inf";
  return {
      {"fields",
       {{"gradient_accumulation_steps",
         auto_or(*found.gradient_accumulation_steps)},
        {"gradient_clipping", auto_or(*found.gradient_clipping)},
        {"zero_stage", *found.zero_stage},
        {"offload_optimizer_device", *found.offload_optimizer_device},
        {"offload_param_device", *found.offload_param_device},
        {"offload_optimizer_nvme_path", *found.offload_optimizer_nvme_path},
        {"offload_param_nvme_path", *found.offload_param_nvme_path},
        {"zero3_init_flag", *found.zero3_init_flag},
        {"zero3_save_16bit_model", *found.zero3_save_16bit_model},
        {"transformer_moe_cls_names", json_of(found.transformer_moe_cls_names)},
        {"enable_msamp", config.uses_msamp()}}},
      {"config", json},
      {"is_zero2", config.zero_stage() == 2},
      {"is_zero3", config.zero_stage() == 3},
      {"is_offload", is_offload}};
}

}  // namespace accelerate::oracle::topic_plugins
