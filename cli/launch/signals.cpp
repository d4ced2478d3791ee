#include "cli/launch/signals.h"

#include <unistd.h>

#include <cstdint>

namespace accelerate::cli {

namespace {

bool ends_launcher(std::uint32_t signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
}

}  // namespace

Signals::Signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal :
       {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    sigaddset(&set, signal);
  }
  sigprocmask(SIG_BLOCK, &set, &before_);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // write() reports the error as well
  descriptor_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

Signals::~Signals() {
  close(descriptor_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<signalfd_siginfo> Signals::next() const {
  signalfd_siginfo info{};
  if (read(descriptor_, &info, sizeof info) ==
      static_cast<ssize_t>(sizeof info)) {
    is_told_to_end_ = is_told_to_end_ || ends_launcher(info.ssi_signo);
    return info;
  }
  return std::nullopt;
}

void Signals::heed() const {
  while (const auto info = next()) {
    if (ends_launcher(info->ssi_signo))
      throw Stopped{static_cast<int>(info->ssi_signo)};
  }
}

}  // namespace accelerate::cli
