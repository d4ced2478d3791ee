#include "cli/launch/nodes/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::cli {
namespace hosts_test {

using ::testing::ElementsAre;
using testing::expect_error;

TEST(ParseHosts, ReadsNamesSlotsAndComments) {
  const auto hosts =
      parse_hosts("# ours\nnode1 slots=4\n\n  node2   slots=4 # new\n");
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].name, "node1");
  EXPECT_EQ(hosts[1].name, "node2");
  EXPECT_EQ(hosts[1].slots, 4);
}

TEST(ParseHosts, ReportsAllErrorsTogether) {
  const std::string text = "a slots=x\nb slots=2\nb slots=2\nc slots=3\n";
  expect_error<ConfigError>([&] { parse_hosts(text); }, "line 1");
  expect_error<ConfigError>([&] { parse_hosts(text); }, "names b twice");
  expect_error<ConfigError>([&] { parse_hosts(text); }, "same number of ranks");
  expect_error<ConfigError>([] { parse_hosts("# none\n"); }, "is empty");
}

TEST(ParseHosts, RefusesNamesThatARemoteShellWouldReadAsSomethingElse) {
  for (const std::string name :
       {"-oProxyCommand=id",
        "user@-oProxyCommand=id",
        "@node1",
        "node[1-3]",
        "a,b",
        "$(id)",
        "node1;id",
        "\x1b[31mred"}) {
    expect_error<ConfigError>(
        [&] { parse_hosts("node0\n" + name + "\n"); },
        "line 2 of the host file names the host");
  }
  for (const std::string name :
       {"node-1.cluster", "user@10.0.0.2", "fe80::1%eth0", "my_host"}) {
    EXPECT_EQ(parse_hosts(name + " slots=2\n").front().name, name);
  }
}

HostLaunch launch_on(std::vector<Host> hosts) {
  HostLaunch launch;
  launch.hosts = std::move(hosts);
  launch.tool = "/opt/accelerate-cpp";
  launch.directory = "/my run";
  launch.shell = "ssh";
  launch.address = "node1";
  launch.port = 29500;
  launch.num_processes = 4;
  launch.flags = {"--mixed_precision", "bf16"};
  launch.program = {"./train", "it's", "RANK"};
  return launch;
}

TEST(HostCommands, ReachOthersThroughSsh) {
  EXPECT_THAT(
      host_commands(launch_on({{"localhost", 2}, {"node2", 2}})),
      ElementsAre(
          ElementsAre(
              "/opt/accelerate-cpp",
              "launch",
              "--mixed_precision",
              "bf16",
              "--num_machines",
              "2",
              "--num_processes",
              "4",
              "--main_process_ip",
              "node1",
              "--main_process_port",
              "29500",
              "--machine_rank",
              "0",
              "./train",
              "it's",
              "RANK"),
          ElementsAre(
              "ssh",
              "-o",
              "BatchMode=yes",
              "--",
              "node2",
              "cd '/my run' && exec /opt/accelerate-cpp launch "
              "--mixed_precision bf16 --num_machines 2 --num_processes 4 "
              "--main_process_ip node1 --main_process_port 29500 "
              "--machine_rank 1 ./train 'it'\\''s' RANK")));
}

TEST(HostCommands, ReachSeveralThroughOnePdsh) {
  HostLaunch launch = launch_on({{"localhost", 2}, {"node2", 2}, {"node3", 2}});
  launch.shell = "pdsh";
  const auto commands = host_commands(launch);
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(commands[1][5], "node2,node3");
  EXPECT_THAT(
      commands[1].back(),
      ::testing::HasSubstr("--machine_rank $((%n + 1)) ./train"));
}

TEST(Quoted, IsOneWordOfAShell) {
  EXPECT_EQ(quoted("plain-1_2.3/x"), "plain-1_2.3/x");
  EXPECT_EQ(quoted(""), "''");
  EXPECT_EQ(quoted("a b"), "'a b'");
  EXPECT_EQ(quoted("$x"), "'$x'");
  EXPECT_EQ(quoted("it's"), "'it'\\''s'");
}

}  // namespace hosts_test
}  // namespace accelerate::cli
