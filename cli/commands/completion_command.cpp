#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>
#include <accelerate/version.h>

#include "base/text/text.h"
#include "cli/tool/commands.h"

namespace accelerate::cli {

namespace {

using detail::format;

struct Flag {
  std::string name;
  std::string help;
  std::string type;  // empty if the flag takes no value
};

// The help page of `app`, rather than of the subcommand on the command line.
std::string help_of(const CLI::App& app, const std::string& name) {
  return app.get_formatter()->make_help(&app, name, CLI::AppFormatMode::Normal);
}

// The flags, spelled with underscores.
std::vector<Flag> flags_of(const CLI::App& command) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty()) continue;
    flags.push_back(
        {format("--{}", option->get_lnames().front()),
         option->get_description(),
         option->get_items_expected_max() > 0 ? option->get_type_name()
                                              : std::string()});
  }
  return flags;
}

struct Command {
  std::string path;  // "checkpoint ls"
  const CLI::App* app;
};

void collect(
    const CLI::App& app,
    const std::string& path,
    std::vector<Command>& out) {
  for (const CLI::App* inner :
       app.get_subcommands([](const CLI::App*) { return true; })) {
    if (inner->get_group().empty()) continue;  // hidden
    const std::string name = path.empty()
        ? inner->get_name()
        : format("{} {}", path, inner->get_name());
    out.push_back({name, inner});
    collect(*inner, name, out);
  }
}

std::vector<Command> commands_of(const CLI::App& tool) {
  std::vector<Command> all;
  collect(tool, "", all);
  return all;
}

std::string words_after(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* inner :
       app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!inner->get_group().empty()) words.push_back(inner->get_name());
  }
  for (const Flag& flag : flags_of(app)) words.push_back(flag.name);
  return detail::join(words, " ");
}

std::string bash_script(const CLI::App& tool) {
  std::string cases;
  for (const Command& command : commands_of(tool)) {
    cases += format(
        "    '{}') words='{}' ;;\n", command.path, words_after(*command.app));
  }
  return format(
      "# bash completion of accelerate-cpp:  source <(accelerate-cpp "
      "completion bash)\n_accelerate_cpp() {{\n  local "
      "cur=${{COMP_WORDS[COMP_CWORD]}} path= word words i\n  for ((i = 1; i < "
      "COMP_CWORD; i++)); do\n    word=${{COMP_WORDS[i]}}\n    case $word in\n "
      "     -*) ;;\n      *) path=\"${{path:+$path }}$word\" ;;\n    esac\n  "
      "done\n  case $path in\n    '') words='{}' ;;\n{}    *) words= ;;\n  "
      "esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n  [ "
      "${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=($(compgen -f -- "
      "\"$cur\"))\n}}\ncomplete -o filenames -F _accelerate_cpp "
      "accelerate-cpp\n",
      words_after(tool),
      cases);
}

std::string escaped(std::string text, const std::string& characters) {
  std::string out;
  for (const char c : text) {
    if (characters.find(c) != std::string::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_script(const CLI::App& tool) {
  std::string out =
      "#compdef accelerate-cpp\n"
      "# zsh completion: accelerate-cpp completion zsh > "
      "\"${fpath[1]}/_accelerate-cpp\"\n"
      "_accelerate_cpp() {\n"
      "  local path= word\n"
      "  for word in ${words[2,CURRENT-1]}; do\n"
      "    [[ $word == -* ]] || path=\"${path:+$path }$word\"\n"
      "  done\n"
      "  local -a items\n"
      "  case $path in\n";
  const auto add_case = [&](const std::string& path, const CLI::App& app) {
    out += format("    '{}') items=(\n", path);
    for (const CLI::App* inner :
         app.get_subcommands([](const CLI::App*) { return true; })) {
      if (inner->get_group().empty()) continue;
      out += format(
          "      '{}:{}'\n",
          inner->get_name(),
          escaped(inner->get_description(), "':"));
    }
    for (const Flag& flag : flags_of(app)) {
      std::string help = flag.help;
      std::erase(help, '\'');
      out += format("      '{}:{}'\n", flag.name, escaped(help, ":"));
    }
    out += "    ) ;;\n";
  };
  add_case("", tool);
  for (const Command& command : commands_of(tool)) {
    add_case(command.path, *command.app);
  }
  return out +
      "  esac\n"
      "  _describe accelerate-cpp items || _files\n"
      "}\n"
      "compdef _accelerate_cpp accelerate-cpp\n";
}

std::string fish_script(const CLI::App& tool) {
  std::string out =
      "# fish completion: accelerate-cpp completion fish > "
      "~/.config/fish/completions/accelerate-cpp.fish\n";
  const auto quoted = [](std::string text) {
    std::erase(text, '\'');
    return format("'{}'", text);
  };
  for (const Command& command : commands_of(tool)) {
    const std::size_t space = command.path.rfind(' ');
    const std::string parent =
        space == std::string::npos ? "" : command.path.substr(0, space);
    out += format(
        "complete -c accelerate-cpp -n '{}' -a {} -d {}\n",
        parent.empty() ? std::string("__fish_use_subcommand")
                       : format("__fish_seen_subcommand_from {}", parent),
        command.app->get_name(),
        quoted(command.app->get_description()));
    for (const Flag& flag : flags_of(*command.app)) {
      out += format(
          "complete -c accelerate-cpp -n '__fish_seen_subcommand_from {}' -l "
          "{}{} -d {}\n",
          command.app->get_name(),
          flag.name.substr(2),
          flag.type.empty() ? "" : " -r",
          quoted(flag.help));
    }
  }
  return out;
}

std::string roff(const std::string& text) {
  std::string out;
  for (const std::string& line : detail::split(text, '\n')) {
    // roff reads a leading period or apostrophe as a request.
    if (line.starts_with(".") || line.starts_with("'")) out += "\\&";
    out += escaped(line, "\\-");
    out += '\n';
  }
  return out;
}

std::string man_page(const std::string& name, const CLI::App& app) {
  std::string page = format(
      ".TH {} 1 \"\" \"accelerate.cpp {}\" \"User Commands\"\n.SH NAME\n"
      "{}.SH SYNOPSIS\n.nf\n",
      detail::to_upper(name),
      ACCELERATE_VERSION,
      roff(format("{} - {}", name, app.get_description())));
  const std::string help = help_of(app, name);
  // The first lines are the description and the usage.
  const std::size_t usage = help.find("Usage:");
  const std::size_t end = help.find('\n', usage);
  page += roff(help.substr(usage, end - usage));
  page += ".fi\n.SH OPTIONS\n.nf\n";
  page += roff(help.substr(end + 1));
  return page +
      ".fi\n.SH SEE ALSO\nThe documentation in docs/ of accelerate.cpp.\n";
}

}  // namespace

std::string help_pages(const CLI::App& tool) {
  std::string page =
      "# Command line\n\n"
      "What `--help` prints, command by command; a test keeps this page equal "
      "to it. Flags may be written with `-` for `_`.\n\n"
      "## accelerate-cpp\n\n```text\n";
  page += help_of(tool, "accelerate-cpp");
  page += "```\n";
  for (const Command& command : commands_of(tool)) {
    const std::string name = format("accelerate-cpp {}", command.path);
    page += format(
        "\n## {}\n\n```text\n{}```\n", name, help_of(*command.app, name));
  }
  return page;
}

RunCommand add_completion_command(CLI::App& tool) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = tool.add_subcommand(
      "completion", "print a completion script for a shell");
  command->add_option("shell", *shell, "bash, zsh or fish")->required();
  return [&tool, shell] {
    if (*shell == "bash") {
      std::fputs(bash_script(tool).c_str(), stdout);
    } else if (*shell == "zsh") {
      std::fputs(zsh_script(tool).c_str(), stdout);
    } else if (*shell == "fish") {
      std::fputs(fish_script(tool).c_str(), stdout);
    } else {
      throw ConfigError(format(
          "[cli] \"{}\" is not a supported shell; choose bash, zsh or fish",
          *shell));
    }
    return 0;
  };
}

RunCommand add_man_command(CLI::App& tool) {
  auto wanted = std::make_shared<std::vector<std::string>>();
  CLI::App* command =
      tool.add_subcommand("man", "print a manual page, for man -l");
  command->add_option(
      "command", *wanted, "the command to describe; else the tool");
  return [&tool, wanted] {
    const std::string path = detail::join(*wanted, " ");
    if (path.empty()) {
      std::fputs(man_page("accelerate-cpp", tool).c_str(), stdout);
      return 0;
    }
    for (const Command& each : commands_of(tool)) {
      if (each.path != path) continue;
      std::string name = format("accelerate-cpp-{}", path);
      for (char& c : name) c = c == ' ' ? '-' : c;
      std::fputs(man_page(name, *each.app).c_str(), stdout);
      return 0;
    }
    throw ConfigError(format("[cli] command \"{}\" does not exist", path));
  };
}

}  // namespace accelerate::cli
