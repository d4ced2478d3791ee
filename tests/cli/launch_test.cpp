#include <fstream>
#include <sstream>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "cli/tool.h"
#include "config/options/option_table.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace launch_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_tool;
using testing::Tool;
using testing::ToolResult;

std::vector<std::string> launch(int count, const std::string& script) {
  return {
      "launch", "--num_processes", std::to_string(count), "bash", "-c", script};
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(Launch, SetsTheRankVariables) {
  const ToolResult result = run_tool(launch(
      3,
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR; test "
      "$MASTER_PORT -gt 0"));
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(
      sorted_lines(result.out),
      ::testing::ElementsAre(
          "[0] 0/3 0/3 127.0.0.1",
          "[1] 1/3 1/3 127.0.0.1",
          "[2] 2/3 2/3 127.0.0.1"));
  EXPECT_EQ(result.err, "");
}

TEST(Launch, PrintsTheRoleAsText) {
  const std::string role = "a\x1b]0;b\a";
  const ToolResult result = run_tool(
      {"launch",
       "--num_processes",
       "2",
       "--role",
       role,
       "bash",
       "-c",
       "test \"$ROLE_NAME\" = $'a\\e]0;b\\a' && echo same"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(
      sorted_lines(result.out),
      ::testing::ElementsAre(
          "[a\\x1b]0;b\\x07 0] same", "[a\\x1b]0;b\\x07 1] same"));
  const ToolResult dry =
      run_tool({"launch", "--role", role, "--dry_run", "bash"});
  EXPECT_THAT(dry.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(dry.out, HasSubstr("a\\x1b]0;b\\x07"));
}

TEST(Launch, DescribesTheFirstAndTheLastOfManyRanks) {
  const ToolResult dry =
      run_tool({"launch", "--num_processes", "66", "--dry_run", "bash"});
  EXPECT_THAT(
      dry.out,
      AllOf(
          HasSubstr("rank 62:\n"),
          HasSubstr("... 2 more ranks ...\nrank 65:\n"),
          Not(HasSubstr("rank 63:\n"))));
  const ToolResult all =
      run_tool({"launch", "--num_processes", "64", "--dry_run", "bash"});
  EXPECT_THAT(
      all.out, AllOf(HasSubstr("rank 63:\n"), Not(HasSubstr("more ranks"))));
}

TEST(Launch, LeavesTheOutputOfOneProcessAlone) {
  const ToolResult result =
      run_tool(launch(1, "printf 'no newline'; echo oops >&2; exit 7"));
  EXPECT_EQ(result.out, "no newline");
  EXPECT_EQ(result.err, "oops\n");
  EXPECT_EQ(result.code, 7);
}

TEST(Launch, PassesArgumentsOnUntouched) {
  const ToolResult result = run_tool(
      {"launch", "printf", "%s|", "--num_processes", "a b", "--help", ""});
  EXPECT_EQ(result.out, "--num_processes|a b|--help||");
}

// As torchrun, env and srun.
TEST(Launch, TakesASeparatorBeforeTheProgram) {
  const std::vector<std::vector<std::string>> flags{
      {},
      {"--cpu"},
      {"--num_processes", "1"},
      {"--num_processes=1", "-q"},
      {"-t", "3", "--role", "--"}};
  for (std::vector<std::string> words : flags) {
    words.insert(words.begin(), "launch");
    words.insert(words.end(), {"--", "printf", "%s|", "--", "-x", "--cpu"});
    const ToolResult result = run_tool(words);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, "--|-x|--cpu|");
  }
  // A program may have the name of a command of the tool.
  EXPECT_EQ(run_tool({"launch", "--", "env", "printf", "%s", "--"}).out, "--");
  // Behind the program it is the program's.
  EXPECT_EQ(run_tool({"launch", "printf", "%s|", "--", "a"}).out, "--|a|");
  EXPECT_THAT(
      run_tool({"launch", "--"}).err, HasSubstr("the program is missing"));
}

TEST(Launch, HelpsWithTheFlagsOfTheChosenEngine) {
  const auto help = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "launch");
    flags.emplace_back("-h");
    const ToolResult result = run_tool(flags);
    EXPECT_EQ(result.code, 0);
    return result.out;
  };
  const auto has_engines = [](auto fsdp, auto deepspeed, auto megatron) {
    return AllOf(
        fsdp(HasSubstr("--fsdp_offload_params")),
        deepspeed(HasSubstr("--zero_stage")),
        megatron(HasSubstr("--megatron_lm_tp_degree")),
        HasSubstr("--num_processes"));
  };
  const auto with = [](auto matcher) {
    return ::testing::Matcher<std::string>(matcher);
  };
  const auto without = [](auto matcher) {
    return ::testing::Matcher<std::string>(Not(matcher));
  };
  EXPECT_THAT(help({}), has_engines(with, with, with));
  EXPECT_THAT(help({}), Not(HasSubstr("Left out:")));
  EXPECT_THAT(
      help({"--multi_gpu"}),
      AllOf(
          has_engines(without, without, without),
          HasSubstr("Left out: FSDP, DeepSpeed, Megatron-LM, Parallelism")));
  EXPECT_THAT(
      help({"--use_fsdp"}),
      AllOf(
          has_engines(with, without, without),
          HasSubstr("Left out: DeepSpeed, Megatron-LM")));
  EXPECT_THAT(
      help({"--cpu", "--use_deepspeed"}), has_engines(without, with, without));
}

TEST(Launch, HandsItsDecisionsOverAsJson) {
  const ToolResult result = run_tool(
      {"launch",
       "--mixed-precision",
       "bf16",
       "bash",
       "-c",
       "echo $ACCELERATE_CPP_CONFIG"});
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("mixed_precision"), "bf16");
  EXPECT_EQ(json.at("origins").at("mixed_precision"), "flag --mixed_precision");
}

TEST(Launch, PrefersFlagsToTheEnvironmentAndThatToTheFile) {
  const testing::TemporaryDirectory directory;
  const std::string file = directory.path() / "config.yaml";
  std::ofstream(file) << "distributed_type: MULTI_CPU\nmixed_precision: "
                         "fp16\ngradient_accumulation_steps: "
                         "4\nnum_processes: 2\n";
  const ToolResult result = run_tool(
      {"launch",
       "--config_file",
       file,
       "--mixed_precision",
       "no",
       "--dry_run",
       "bash"},
      {{"ACCELERATE_MIXED_PRECISION", "bf16"},
       {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(
      result.out, HasSubstr("mixed_precision = no  (flag --mixed_precision)"));
  EXPECT_THAT(
      result.out,
      HasSubstr("gradient_accumulation_steps = 8  (environment variable "
                "ACCELERATE_GRADIENT_ACCUMULATION_STEPS)"));
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("num_processes = 2"), HasSubstr("config.yaml")));
}

TEST(Launch, DividesTheCoresAmongTheRanksByDefault) {
  const ToolResult shared = run_tool(launch(2, "echo $OMP_NUM_THREADS"));
  EXPECT_THAT(shared.out, ::testing::ContainsRegex("\\[0\\] [1-9]"));
  const ToolResult told =
      run_tool(launch(2, "echo $OMP_NUM_THREADS"), {{"OMP_NUM_THREADS", "5"}});
  EXPECT_THAT(sorted_lines(told.out), ::testing::ElementsAre("[0] 5", "[1] 5"));
}

TEST(Launch, HidesTheRanksOfAnotherLauncher) {
  const ToolResult result = run_tool(
      launch(
          1, "echo ${OMPI_COMM_WORLD_RANK:-none} ${TORCHELASTIC_RUN_ID:-none}"),
      {{"OMPI_COMM_WORLD_RANK", "3"}, {"TORCHELASTIC_RUN_ID", "x"}});
  EXPECT_EQ(result.out, "none none\n");
}

TEST(Launch, EndsTheOthersWhenOneFailsAndSaysWhyLast) {
  const ToolResult result = run_tool(launch(
      3,
      "if [ $RANK = 1 ]; then echo 'no such file' >&2; exit 5; fi; sleep "
      "1000"));
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.err, HasSubstr("[1] no such file\n"));
  EXPECT_THAT(
      result.err,
      ::testing::ContainsRegex(
          "accelerate-cpp: rank 1 \\(process [0-9]+\\) exited with code 5"));
  EXPECT_TRUE(result.err.ends_with(
      "accelerate-cpp: its last output:\n    no such file\n"))
      << result.err;
}

TEST(Launch, BlamesTheRankThatDidNotLoseAPeer) {
  // Rank 0 exits first because it lost rank 1, which exits later.
  const testing::TemporaryDirectory directory;
  const std::string fifo = directory.path() / "fifo";
  const ToolResult result = run_tool(launch(
      2,
      "if [ $RANK = 1 ]; then until [ -e " + fifo +
          " ]; do :; done; echo 'out of disk' >&2; exit 9; fi;"
          "echo '[comm] rank 1 is gone' >&2; touch " +
          fifo + "; exit 3"));
  EXPECT_EQ(result.code, 9);
  EXPECT_THAT(result.err, HasSubstr("rank 1 (process"));
  EXPECT_TRUE(result.err.ends_with("    out of disk\n")) << result.err;
}

TEST(Launch, TranslatesTheSignalThatKilledARank) {
  const ToolResult several = run_tool(
      launch(2, "if [ $RANK = 0 ]; then kill -KILL $$; fi; sleep 1000"));
  EXPECT_EQ(several.code, 128 + SIGKILL);
  EXPECT_THAT(several.err, HasSubstr("was killed by SIGKILL (out of memory?"));
  const ToolResult one = run_tool(launch(1, "kill -SEGV $$"));
  EXPECT_EQ(one.code, 128 + SIGSEGV);
  EXPECT_THAT(one.err, HasSubstr("was killed by SIGSEGV"));
}

// The C++ runtime prints the exception before it aborts.
TEST(Launch, NamesAnExceptionThatNobodyCaught) {
  const ToolResult result = run_tool(launch(
      2,
      "if [ $RANK = 1 ]; then printf \"terminate called after throwing an "
      "instance of 'std::runtime_error'\\n  what():  no such file\\n\" >&2; "
      "kill -ABRT $$; fi; sleep 1000"));
  EXPECT_EQ(result.code, 128 + SIGABRT);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("accelerate-cpp: rank 1 ended with an uncaught "
                    "std::runtime_error: no such file\n"),
          HasSubstr(") ended with an uncaught exception; the others were "
                    "ended\n"),
          Not(HasSubstr("SIGABRT"))));
  EXPECT_TRUE(result.err.ends_with("      what():  no such file\n"))
      << result.err;
}

TEST(Launch, NamesALimitOfOpenFilesThatIsTooLow) {
  const std::string tool = ACCELERATE_TOOL;
  const auto with_limit = [&](const std::string& limit) {
    return run_tool(launch(
        1,
        "ulimit -n " + limit + "; exec " + tool +
            " launch --num_processes 4 bash -c 'ulimit -n'"));
  };
  const ToolResult low = with_limit("24");
  EXPECT_EQ(low.code, 2);
  EXPECT_THAT(
      low.err,
      HasSubstr("[launch] the launcher needs about 128 open files for 4 ranks, "
                "but the limit is 24; raise it (ulimit -n)"));
  EXPECT_EQ(with_limit("127").code, 2);
  EXPECT_EQ(with_limit("128").code, 0);
  // A soft limit is raised.
  const ToolResult soft = with_limit("-S 24");
  EXPECT_EQ(soft.code, 0) << soft.err;
}

// The store of machine 0 serves the ranks of all machines. Nothing listens at
// the port, since the launcher ends before.
TEST(Launch, NeedsOpenFilesForTheRanksOfOtherMachines) {
  const ToolResult result = run_tool(launch(
      1,
      "ulimit -n 200; exec " + std::string(ACCELERATE_TOOL) +
          " launch --num_machines 5 --num_processes 20 --machine_rank 0 "
          "--main_process_ip 127.0.0.1 --main_process_port 29500 true"));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(
      result.err,
      HasSubstr("[launch] the launcher needs about 256 open files for 20 "
                "ranks, but the limit is 200; raise it (ulimit -n)"));
}

TEST(Launch, SaysThatTheLoopbackInterfaceIsDown) {
  const std::string tool = ACCELERATE_TOOL;
  // A new network namespace has a loopback interface that is down.
  const auto inside = [](const std::string& command) {
    return run_tool(launch(1, "exec unshare -rn " + command));
  };
  if (inside("true").code != 0) GTEST_SKIP() << "no network namespaces here";
  const ToolResult result = inside(tool + " launch --num_processes 2 true");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("[launch] ranks on this machine cannot connect to "
                    "127.0.0.1"),
          HasSubstr("Network is unreachable; is the loopback interface up")));
  // A single process needs no store.
  EXPECT_EQ(inside(tool + " launch --num_processes 1 true").code, 0);
}

TEST(Launch, ForwardsSignals) {
  Tool tool(launch(
      2,
      "trap 'echo caught; kill $!; exit 0' TERM; sleep 1000 & echo ready; "
      "wait"));
  tool.read_line();
  tool.read_line();
  kill(tool.pid(), SIGTERM);
  const ToolResult result = tool.wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_THAT(
      sorted_lines(result.out),
      ::testing::ElementsAre("[0] caught", "[1] caught"));
}

TEST(Launch, LeavesNoOrphansWhenItIsKilled) {
  for (const int count : {1, 2}) {
    // The ranks hold the write end of a pipe, so its reader sees end of file
    // once all of them are gone.
    Tool tool(launch(count, "echo $$; exec sleep 1000"));
    const std::string line = tool.read_line();
    if (count == 2) tool.read_line();
    const auto pid =
        static_cast<pid_t>(std::stol(line.substr(line.find(']') + 1)));
    EXPECT_EQ(kill(pid, 0), 0);
    kill(tool.pid(), SIGKILL);
    tool.wait();  // also waits for the last writer of its output
    // The killed process can be a zombie until its new parent reaps it.
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    std::stringstream text;
    text << status.rdbuf();
    while (kill(pid, 0) == 0 &&
           text.str().find("State:\tZ") == std::string::npos) {
      status = std::ifstream("/proc/" + std::to_string(pid) + "/status");
      text.str("");
      text << status.rdbuf();
    }
  }
}

TEST(Launch, RefusesAPortThatIsTaken) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(
      bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address),
      0);
  ASSERT_EQ(listen(descriptor, 1), 0);
  socklen_t length = sizeof address;
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const ToolResult result = run_tool(
      {"launch", "--num_processes", "2", "--main_process_port", port, "true"});
  close(descriptor);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("port " + port + " of 127.0.0.1 is taken"));
}

TEST(Launch, NamesTheFlagThatWasMeant) {
  const ToolResult result = run_tool({"launch", "--num_proceses", "2", "true"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean --num_processes?"));
}

TEST(Launch, ReportsAllWrongSettingsTogether) {
  const ToolResult result = run_tool(
      {"launch", "--num_processes", "0", "--mixed_precision", "fp12", "true"},
      {{"ACCELERATE_DEBUG_MODE", "perhaps"}});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("is \"0\""), HasSubstr("fp12"), HasSubstr("perhaps")));
}

TEST(Launch, NamesAnUnknownKeyOfTheFile) {
  const testing::TemporaryDirectory directory;
  const std::string file = directory.path() / "config.yaml";
  std::ofstream(file) << "mixed_precison: bf16\n";
  const ToolResult result = run_tool({"launch", "--config_file", file, "true"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("mixed_precison"), HasSubstr("mixed_precision")));
}

TEST(Launch, NamesTheProblemWithTheProgram) {
  EXPECT_THAT(
      run_tool({"launch", "./nowhere"}).err,
      HasSubstr("\"./nowhere\" does not exist"));
  EXPECT_THAT(
      run_tool({"launch", "no-such-program"}).err, HasSubstr("is not on PATH"));
  EXPECT_THAT(
      run_tool({"launch", "/etc/passwd"}).err,
      HasSubstr("is not an executable file"));
  EXPECT_EQ(run_tool({"launch"}).code, 2);
}

TEST(Launch, StartsNoRankIfTheProgramCannotRun) {
  const testing::TemporaryDirectory directory;
  const std::string program = directory.path() / "program";
  std::ofstream(program) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  for (const char* const count : {"1", "3"}) {
    const ToolResult result = run_tool(
        {"launch", "--num_processes", count, "--max_restarts", "2", program});
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(
        result.err,
        ::testing::StartsWith(
            "accelerate-cpp: [launch] cannot start \"" + program + "\": "));
  }
}

TEST(Tool, HelpsAndNamesItsVersion) {
  EXPECT_THAT(run_tool({"--help"}).out, HasSubstr("launch"));
  EXPECT_THAT(run_tool({"--version"}).out, HasSubstr("accelerate-cpp 0."));
  EXPECT_THAT(run_tool({"launch", "--help"}).out, HasSubstr("--num_processes"));
  EXPECT_EQ(run_tool({"lunch"}).code, 2);
}

TEST(Tool, PrintsTheOptionsPageOfTheDocs) {
  std::ifstream page(OPTIONS_PAGE);
  std::stringstream text;
  text << page.rdbuf();
  EXPECT_EQ(run_tool({"options"}).out, text.str());
}

}  // namespace launch_test
}  // namespace accelerate
