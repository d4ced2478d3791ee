#include "base/process/signal_flag.h"

#include <csignal>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace signal_flag_test {

using accelerate::testing::expect_error;

int num_handled = 0;

void handle(int) { ++num_handled; }

TEST(SignalFlag, IsSetByItsSignalsOnly) {
  const SignalFlag flag(std::vector<int>{SIGUSR1, SIGUSR2});
  EXPECT_EQ(flag.received(), 0);
  std::raise(SIGUSR2);
  EXPECT_EQ(flag.received(), SIGUSR2);
}

TEST(SignalFlag, SeesOnlyWhatComesWhileItLives) {
  const auto first = std::make_unique<SignalFlag>(std::vector<int>{SIGUSR1});
  std::raise(SIGUSR1);
  const SignalFlag second(std::vector<int>{SIGUSR1});
  EXPECT_EQ(first->received(), SIGUSR1);
  EXPECT_EQ(second.received(), 0);
  std::raise(SIGUSR1);
  EXPECT_EQ(second.received(), SIGUSR1);
}

TEST(SignalFlag, CallsAndRestoresAnEarlierHandler) {
  struct sigaction action {};
  action.sa_handler = &handle;
  struct sigaction original {};
  ::sigaction(SIGUSR1, &action, &original);
  num_handled = 0;
  {
    auto first = std::make_unique<SignalFlag>(std::vector<int>{SIGUSR1});
    const SignalFlag second(std::vector<int>{SIGUSR1});
    first.reset();
    std::raise(SIGUSR1);
    EXPECT_EQ(second.received(), SIGUSR1);
    EXPECT_EQ(num_handled, 1);
  }
  std::raise(SIGUSR1);
  EXPECT_EQ(num_handled, 2);
  ::sigaction(SIGUSR1, &original, nullptr);
}

TEST(SignalFlag, CallsAnEarlierHandlerThatTakesDetails) {
  struct sigaction action {};
  action.sa_sigaction = [](int, siginfo_t* details, void*) {
    num_handled += details->si_signo == SIGUSR1 ? 1 : 0;
  };
  action.sa_flags = SA_SIGINFO;
  struct sigaction original {};
  ::sigaction(SIGUSR1, &action, &original);
  num_handled = 0;
  {
    const SignalFlag flag(std::vector<int>{SIGUSR1});
    std::raise(SIGUSR1);
    EXPECT_EQ(flag.received(), SIGUSR1);
  }
  EXPECT_EQ(num_handled, 1);
  std::raise(SIGUSR1);
  EXPECT_EQ(num_handled, 2);
  ::sigaction(SIGUSR1, &original, nullptr);
}

TEST(SignalFlag, RefusesSignalsThatNobodyCanHandle) {
  for (const int signal : {SIGKILL, SIGSTOP, 0, -1, 32, 33, 100}) {
    expect_error<ConfigError>(
        [signal] { SignalFlag flag(std::vector<int>{signal}); },
        "cannot be handled");
  }
}

}  // namespace signal_flag_test
}  // namespace accelerate::detail
