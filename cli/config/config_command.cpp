#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "cli/config/config_files.h"
#include "cli/config/questions.h"
#include "cli/launch/decision/launch_decision.h"
#include "cli/launch/decision/launch_flags.h"
#include "cli/launch/machine/machine.h"
#include "cli/tool/commands.h"
#include "config/files/config_file.h"
#include "config/user_variables.h"
#include "engines/explain_request.h"
#include "engines/request/read_request.h"

namespace accelerate::cli {

namespace {

using detail::ConfigJson;
using detail::format;
namespace fs = std::filesystem;

constexpr const char* kFileHelp =
    "the file; else Accelerate's own, in the directory of its cache";

CLI::Option* add_file_option(CLI::App& command, std::string& file) {
  return command.add_option("--config_file,--config-file", file, kFileHelp)
      ->type_name("FILE");
}

fs::path path_of(
    const std::string& named,
    const detail::Environment& environment) {
  if (!named.empty()) return named;
  const auto usual = detail::default_config_path(environment);
  if (!usual) {
    throw ConfigError(
        "[config] none of HF_HOME, XDG_CACHE_HOME and HOME is set; pass "
        "--config_file");
  }
  return *usual;
}

// The file to read: the named one, or Accelerate's own if it exists. Throws if
// the latter cannot be inspected.
std::optional<fs::path> existing_path(
    const std::string& named,
    const detail::Environment& environment) {
  if (!named.empty()) return named;
  const detail::DefaultConfig usual = detail::find_default_config(environment);
  if (!usual.problem.empty()) {
    throw ConfigError(format(
        "[config] the default config file {} cannot be read: {}; pass "
        "--config_file, or set HF_HOME to a readable directory",
        usual.path.string(),
        usual.problem));
  }
  return usual.exists ? std::optional(usual.path) : std::nullopt;
}

void save(const fs::path& path, const ConfigJson& values) {
  detail::replace_file(
      path, detail::write_config(values, path.extension() == ".json"));
  std::printf("written: %s\n", path.c_str());
}

int ask_and_save(const std::string& file) {
  const auto environment = detail::Environment::current();
  const fs::path path = path_of(file, environment);
  const int devices = look_at_machine(environment).num_devices();
  std::cout << "An empty line takes the answer in brackets, < goes back.\n";
  const Answers answers = ask(config_questions(devices), std::cin, std::cout);
  save(path, config_of_answers(answers));
  return 0;
}

int write_default(const std::string& file, const std::string& precision) {
  const auto environment = detail::Environment::current();
  const fs::path path = path_of(file, environment);
  const bool is_written = detail::write_default_config(
      path, precision, look_at_machine(environment).num_devices());
  std::printf(
      is_written ? "written: %s\n"
                 : "%s already exists and was left unchanged; change it with "
                   "accelerate-cpp config, or remove it\n",
      path.c_str());
  return 0;
}

int update(const std::string& file) {
  const fs::path path = path_of(file, detail::Environment::current());
  update_config(path);
  std::printf("updated: %s\n", path.c_str());
  return 0;
}

// The settings that a launched program gets; the launcher translates
// distributed_type into an engine's flag.
detail::Source source_of_launch(const detail::ConfigDocument& document) {
  detail::Source source = detail::source_from_config(document);
  if (document.values.empty()) return source;
  const std::string type =
      detail::values_in_force(document).value("distributed_type", "");
  const std::string where = detail::place_of(document, "distributed_type");
  for (const auto& [name, flag] :
       {std::pair("FSDP", "use_fsdp"),
        std::pair("DEEPSPEED", "use_deepspeed"),
        std::pair("MEGATRON_LM", "use_megatron_lm")}) {
    if (type == name) source.add(flag, "true", where);
  }
  return source;
}

// Prints every setting in force, and what the engines' settings request.
void print_meaning(
    const detail::Settings& settings,
    detail::Environment environment,
    const std::optional<detail::ConfigDocument>& document) {
  if (document && !document->values.empty()) {
    const auto fields =
        deepspeed_fields(settings, detail::values_in_force(*document));
    environment.set("ACCELERATE_CONFIG_DS_FIELDS", detail::join(fields, ","));
  }
  const std::string precision = settings.text("mixed_precision").value_or("no");
  detail::RequestSources sources;
  sources.mixed_precision = precision;
  sources.precision_is_open = precision == "no";
  sources.settings = settings;
  sources.environment = std::move(environment);
  const detail::TrainingRequest request =
      detail::read_training_request(sources);
  std::fputs(request.settings.explain().c_str(), stdout);
  std::fputs(
      detail::explain_nccl_variables(sources.environment).c_str(), stdout);
  std::printf("\nwhich asks for\n");
  std::fputs(detail::explain(request).c_str(), stdout);
}

int show(const std::string& file, bool explains) {
  const auto environment = detail::Environment::current();
  const fs::path path = path_of(file, environment);
  std::optional<detail::ConfigDocument> document;
  if (existing_path(file, environment))
    document = detail::read_config_document(path);
  if (!explains) {
    if (!document) {
      std::printf(
          "%s does not exist; all settings have their defaults\n",
          path.c_str());
      return 0;
    }
    std::printf("# %s\n", path.c_str());
    const ConfigJson values =
        detail::values_to_write(detail::values_in_force(*document));
    std::fputs(detail::write_config(values, document->is_json).c_str(), stdout);
    return 0;
  }
  std::vector<detail::Source> sources{
      detail::source_from_environment(environment)};
  if (document) sources.push_back(source_of_launch(*document));
  print_meaning(detail::resolve(sources), environment, document);
  return 0;
}

int convert(
    const std::string& input,
    const std::string& output,
    bool overwrite) {
  const auto notes = convert_file_to_fsdp2(
      input,
      output.empty() ? std::nullopt : std::optional<fs::path>(output),
      overwrite);
  for (const std::string& note : notes) {
    std::fprintf(stderr, "accelerate-cpp: %s\n", note.c_str());
  }
  std::printf("written: %s\n", output.empty() ? input.c_str() : output.c_str());
  return 0;
}

struct TpuFlags {
  std::string config_file, name, zone, command_file, version = "latest";
  std::vector<std::string> commands;
  bool uses_alpha = false, installs = false, debug = false;
};

std::vector<std::string> tpu_commands(
    TpuFlags& flags,
    const std::optional<detail::ConfigDocument>& file) {
  const auto text = [&](const char* key) {
    return file && file->values.contains(key) && file->values[key].is_string()
        ? file->values[key].get<std::string>()
        : std::string();
  };
  if (flags.name.empty()) flags.name = text("tpu_name");
  if (flags.zone.empty()) flags.zone = text("tpu_zone");
  if (flags.command_file.empty() && flags.commands.empty()) {
    flags.command_file = text("command_file");
    if (file && file->values.contains("commands") &&
        file->values["commands"].is_array()) {
      for (const auto& command : file->values["commands"]) {
        flags.commands.push_back(detail::python_text(command));
      }
    }
  }
  std::vector<std::string> commands = flags.commands;
  if (!flags.command_file.empty()) {
    for (const std::string& line :
         detail::split(detail::read_file_or_pipe(flags.command_file), '\n')) {
      if (!detail::trim(line).empty()) {
        commands.emplace_back(detail::trim(line));
      }
    }
  }
  return commands;
}

int print_tpu_command(TpuFlags flags) {
  std::optional<detail::ConfigDocument> file;
  const auto path =
      existing_path(flags.config_file, detail::Environment::current());
  if (path) file = detail::read_config_document(*path);
  std::vector<std::string> commands = tpu_commands(flags, file);
  if (commands.empty()) {
    throw ConfigError(
        "[tpu-config] no commands to run; pass --command or --command_file, or "
        "put commands into the config file");
  }
  if (flags.installs) {
    commands.insert(
        commands.begin(),
        flags.version == "dev"
            ? "pip install git+https://github.com/huggingface/accelerate.git"
            : flags.version == "latest"
            ? "pip install accelerate -U"
            : format("pip install accelerate=={}", flags.version));
  }
  commands.insert(commands.begin(), "cd /usr/share");
  std::printf(
      "gcloud%s compute tpus tpu-vm ssh %s --zone %s "
      "--command \"%s\" --worker all\n",
      flags.uses_alpha ? " alpha" : "",
      flags.name.c_str(),
      flags.zone.c_str(),
      detail::join(commands, "; ").c_str());
  return 0;
}

}  // namespace

RunCommand add_config_command(CLI::App& tool) {
  struct Flags {
    std::string file, precision = "no";
    bool explains = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* config = tool.add_subcommand(
      "config", "ask for the settings of launches, and write them to a file");
  config->require_subcommand(0, 1);
  add_file_option(*config, flags->file);
  CLI::App* by_default = config->add_subcommand(
      "default",
      "write a file without asking: all accelerators of "
      "this machine, or the CPU");
  add_file_option(*by_default, flags->file);
  by_default
      ->add_option(
          "--mixed_precision,--mixed-precision",
          flags->precision,
          "no, fp16, bf16 or fp8")
      ->type_name("WORD");
  CLI::App* updated = config->add_subcommand(
      "update", "add keys of newer versions; keeps comments and order");
  add_file_option(*updated, flags->file);
  CLI::App* shown =
      config->add_subcommand("show", "print the settings of the file");
  add_file_option(*shown, flags->file);
  shown->add_flag(
      "--explain",
      flags->explains,
      "every setting in force, and where it came from: file, environment or "
      "default; then what those of FSDP, DeepSpeed or Megatron-LM ask for, and "
      "what is ignored");
  const CLI::App* schema = config->add_subcommand(
      "schema", "print the JSON schema of config files, for editors");
  return [=] {
    if (by_default->parsed()) {
      return write_default(flags->file, flags->precision);
    }
    if (updated->parsed()) return update(flags->file);
    if (shown->parsed()) return show(flags->file, flags->explains);
    if (schema->parsed()) {
      std::fputs(detail::config_schema().c_str(), stdout);
      return 0;
    }
    return ask_and_save(flags->file);
  };
}

RunCommand add_to_fsdp2_command(CLI::App& tool) {
  struct Flags {
    std::string input, output;
    bool overwrite = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = tool.add_subcommand(
      "to-fsdp2", "convert a config file from FSDP version 1 to version 2");
  command->add_option("--config_file,--config-file", flags->input, "the file")
      ->type_name("FILE")
      ->required();
  command
      ->add_option(
          "--output_file,--output-file", flags->output, "where the result goes")
      ->type_name("FILE");
  command->add_flag(
      "--overwrite",
      flags->overwrite,
      "replace the output, or, without one, the file itself");
  return [flags] {
    return convert(flags->input, flags->output, flags->overwrite);
  };
}

RunCommand add_tpu_config_command(CLI::App& tool) {
  auto flags = std::make_shared<TpuFlags>();
  CLI::App* command = tool.add_subcommand(
      "tpu-config", "print the command that sets up the machines of a TPU pod");
  const auto option = [&](const char* name, auto& value, const char* help) {
    return command->add_option(both_spellings(name), value, help);
  };
  add_file_option(*command, flags->config_file);
  option("--tpu_name", flags->name, "name of the TPU")->type_name("NAME");
  option("--tpu_zone", flags->zone, "its zone")->type_name("ZONE");
  option("--command_file", flags->command_file, "commands, one per line")
      ->type_name("FILE");
  option("--command", flags->commands, "a command; may be given several times")
      ->type_name("TEXT");
  option(
      "--accelerate_version",
      flags->version,
      "version of Accelerate to install: latest, dev or a number")
      ->type_name("WORD");
  command->add_flag(
      both_spellings("--use_alpha"), flags->uses_alpha, "gcloud alpha");
  command->add_flag(
      both_spellings("--install_accelerate"),
      flags->installs,
      "install Accelerate first");
  command->add_flag(
      "--debug", flags->debug, "ignored: the command is only printed");
  return [flags] { return print_tpu_command(*flags); };
}

}  // namespace accelerate::cli
