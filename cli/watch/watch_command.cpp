#include <signal.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/files/files.h"
#include "base/text/text.h"
#include "cli/runs/print_warning.h"
#include "cli/runs/run_record.h"
#include "cli/tool/commands.h"
#include "cli/watch/report_page.h"
#include "cli/watch/terminal/dashboard.h"
#include "cli/watch/terminal/terminal.h"
#include "cli/watch/watched_runs.h"
#include "cli/watch/web/web_server.h"
#include "config/environment.h"

namespace accelerate::cli {

namespace {

using Milliseconds = std::chrono::milliseconds;

struct WatchFlags {
  std::vector<std::string> paths;
  bool is_web = false;
  int port = 0;
  std::string output = "report.html";
};

double now() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

int print_snapshot(WatchedRuns& runs) {
  do {
    runs.update();
  } while (runs.has_more());
  for (const std::string& line :
       Dashboard(runs).draw({80, 24}, {.now = now()})) {
    std::printf("%s\n", line.c_str());
  }
  return 0;
}

int watch_in_terminal(WatchedRuns& runs, bool has_colors) {
  constexpr Milliseconds kInterval(500);
  // How long to wait for the rest of an escape sequence.
  constexpr Milliseconds kRest(50);
  Dashboard dashboard(runs);
  Terminal terminal;
  std::string input;
  auto next_look = std::chrono::steady_clock::now();
  while (true) {
    if (std::chrono::steady_clock::now() >= next_look) {
      runs.update();
      next_look = std::chrono::steady_clock::now() +
          (runs.has_more() ? Milliseconds(0) : kInterval);
    }
    terminal.show(dashboard.draw(
        terminal.size(),
        {.has_colors = has_colors, .has_keys = true, .now = now()}));
    const Milliseconds pause = runs.has_more() ? Milliseconds(0) : kInterval;
    const auto wake = terminal.wait(input.empty() ? pause : kRest, input);
    if (wake == Terminal::Wake::end) return 0;
    const bool is_all = wake == Terminal::Wake::time;
    for (std::size_t before = 0; !input.empty() && before != input.size();) {
      before = input.size();
      const WatchKey key = take_key(input, is_all);
      if (key == WatchKey::quit) return 0;
      dashboard.press(key);
    }
  }
}

int watch_in_browser(const WatchFlags& flags) {
  // Waited for below, so that the server shuts down cleanly. Its threads have
  // to inherit the mask.
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ending, signal);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  const WebServer server(flags.paths, {.port = flags.port});
  std::printf(
      "%s\nThe address works on this machine only, for those who know it; "
      "from another one: ssh -L %d:127.0.0.1:%d. Ctrl-C ends.\n",
      server.address().c_str(),
      server.port(),
      server.port());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ending, &signal);
  return 0;
}

int watch(const WatchFlags& flags) {
  if (flags.is_web) return watch_in_browser(flags);
  WatchedRuns runs(flags.paths);
  const auto environment = detail::Environment::current();
  return Terminal::is_usable(environment.get("TERM"))
      ? watch_in_terminal(runs, !environment.has("NO_COLOR"))
      : print_snapshot(runs);
}

int write_report(const WatchFlags& flags) {
  detail::replace_file(
      flags.output, report_page(read_runs(flags.paths, print_warning)));
  std::printf("%s written\n", detail::printable(flags.output).c_str());
  return 0;
}

CLI::App* add_command(
    CLI::App& tool,
    const char* name,
    const char* help,
    WatchFlags& flags) {
  CLI::App* const command = tool.add_subcommand(name, help);
  command->add_option(
      "path",
      flags.paths,
      "directories of runs or of projects; the current one without any");
  return command;
}

}  // namespace

RunCommand add_watch_command(CLI::App& tool) {
  const auto flags = std::make_shared<WatchFlags>();
  CLI::App* const command = add_command(
      tool, "watch", "curves and ranks of runs, as they happen", *flags);
  CLI::Option* const web = command->add_flag(
      "--web",
      flags->is_web,
      "serve a page to this machine's browsers and print its address");
  command
      ->add_option(
          "--port", flags->port, "port of the page; 0 for any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->needs(web);
  return [=] { return watch(*flags); };
}

RunCommand add_run_report_command(CLI::App& tool) {
  const auto flags = std::make_shared<WatchFlags>();
  CLI::App* const command = add_command(
      tool,
      "report",
      "the page of watch --web as one file, which needs no network",
      *flags);
  command->add_option("-o,--output", flags->output, "the file")
      ->capture_default_str();
  return [=] { return write_report(*flags); };
}

}  // namespace accelerate::cli
