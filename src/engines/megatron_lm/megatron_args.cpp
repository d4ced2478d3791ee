#include "engines/megatron_lm/megatron_args.h"

#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/text/text.h"
#include "engines/megatron_lm/megatron_fields.h"

namespace accelerate::detail {

namespace {

using nlohmann::json;

// Whether the JSON value has the field's type; if so, assigns it.
template <class Value>
bool assign(const json& value, Value& field) {
  if constexpr (std::is_same_v<Value, bool>) {
    if (!value.is_boolean()) return false;
  } else if constexpr (std::is_same_v<Value, std::string>) {
    if (!value.is_string()) return false;
  } else if constexpr (std::is_floating_point_v<Value>) {
    if (!value.is_number()) return false;
  } else {
    if (!value.is_number_integer()) return false;
    // Unsigned 64-bit numbers would wrap around.
    const auto number = value.get<double>();
    if (number < static_cast<double>(std::numeric_limits<Value>::min()) ||
        number > static_cast<double>(std::numeric_limits<Value>::max()))
      return false;
  }
  field = value.get<Value>();
  return true;
}

template <class Value>
constexpr std::string_view name_of_type() {
  if constexpr (std::is_same_v<Value, bool>) return "true or false";
  if constexpr (std::is_same_v<Value, std::string>) return "a string";
  if constexpr (std::is_floating_point_v<Value>) return "a number";
  return "a whole number";
}

class ArgumentReader {
 public:
  ArgumentReader(const json& arguments, MegatronArguments& out)
      : arguments_(arguments), out_(out) {
    for (const auto& item : arguments.items()) unread_.insert(item.key());
  }

  // Takes every field, under its own name and that of Megatron-LM's argument.
  void take_fields() {
    visit_megatron_fields(
        [&](std::string_view name, auto member, const MegatronField& field) {
          read(std::string(name), out_.options.*member);
          if (!field.argument.empty())
            read(std::string(field.argument), out_.options.*member);
        });
  }

  template <class Value>
  void take(
      std::optional<Value> MegatronScheduleArguments::*field,
      const std::string& name) {
    if (read(name, out_.schedule.*field)) out_.schedule_names.push_back(name);
  }

  // Does not report arguments that request what this library does anyway.
  void pass_over(const std::string& name, const std::set<std::string>& values) {
    const auto found = arguments_.find(name);
    if (found != arguments_.end() && found->is_string() &&
        values.contains(found->get<std::string>()))
      unread_.erase(name);
  }

  void finish() {
    for (const std::string& name : unread_) {
      // null is Megatron-LM's own default for most arguments.
      if (!arguments_.at(name).is_null()) out_.unknown.push_back(name);
    }
  }

 private:
  template <class Value>
  bool read(const std::string& name, std::optional<Value>& field) {
    const auto found = arguments_.find(name);
    if (found == arguments_.end() || found->is_null()) return false;
    unread_.erase(name);
    Value value{};
    if (assign(*found, value)) {
      field = std::move(value);
      return true;
    }
    out_.complaints.push_back(format(
        "[config] {} in megatron_lm.other_megatron_args must be {}, but is {}",
        name,
        name_of_type<Value>(),
        found->dump()));
    return false;
  }

  const json& arguments_;
  MegatronArguments& out_;
  std::set<std::string> unread_;
};

}  // namespace

MegatronArguments read_megatron_arguments(const MegatronLMOptions& given) {
  MegatronArguments out{.options = given};
  if (!given.other_megatron_args) return out;
  const json arguments = json::parse(
      *given.other_megatron_args, nullptr, /*allow_exceptions=*/false);
  if (!arguments.is_object()) {
    out.complaints.push_back(format(
        "[config] megatron_lm.other_megatron_args must be a "
        "JSON object, but is \"{}\"",
        *given.other_megatron_args));
    return out;
  }
  ArgumentReader reader(arguments, out);
  reader.take_fields();
  using S = MegatronScheduleArguments;
  reader.take(&S::lr_warmup_init, "lr_warmup_init");
  reader.take(&S::lr_wsd_decay_iters, "lr_wsd_decay_iters");
  reader.take(&S::lr_wsd_decay_samples, "lr_wsd_decay_samples");
  reader.take(&S::lr_wsd_decay_style, "lr_wsd_decay_style");
  for (const char* const name :
       {"main_grads_dtype",
        "main_params_dtype",
        "exp_avg_dtype",
        "exp_avg_sq_dtype"})
    reader.pass_over(name, {"fp32", "torch.float32"});
  reader.finish();
  return out;
}

}  // namespace accelerate::detail
