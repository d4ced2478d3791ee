#include "config/rank_variables.h"

#include <string>
#include <vector>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace rank_variables_test {

using testing::expect_error;
using Variables = std::map<std::string, std::string, std::less<>>;

RankVariables read(const Variables& variables) {
  return read_rank_variables(Environment(variables));
}

TEST(RankVariables, AreOneProcessWithoutALauncher) {
  const RankVariables found = read({});
  EXPECT_EQ(found.rank, 0);
  EXPECT_EQ(found.size, 1);
  EXPECT_EQ(found.launcher, "none");
}

TEST(RankVariables, FollowTorchrun) {
  const RankVariables found = read(
      {{"RANK", "5"},
       {"WORLD_SIZE", "8"},
       {"LOCAL_RANK", "1"},
       {"LOCAL_WORLD_SIZE", "4"},
       {"MASTER_ADDR", "node1"},
       {"MASTER_PORT", "1234"},
       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
       {"TORCHELASTIC_RUN_ID", "a"},
       {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 4);
  EXPECT_EQ(found.address, "node1");
  EXPECT_EQ(found.port, 1234);
  EXPECT_TRUE(found.agent_hosts_store);
  EXPECT_EQ(found.store_prefix, "attempt_2");
}

TEST(RankVariables, PutTheSecretInFrontOfAllKeys) {
  Variables variables{
      {"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "0"},
      {"ACCELERATE_CPP_STORE_SECRET", "0123456789-abc_DEF"}};
  EXPECT_EQ(read(variables).store_prefix, "0123456789-abc_DEF");
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  EXPECT_EQ(read(variables).store_prefix, "0123456789-abc_DEF/attempt_1");
  EXPECT_TRUE(is_rank_variable("ACCELERATE_CPP_STORE_SECRET"));
  for (const char* const bad :
       {"short", "with/a/slash/in/it", "a b c d e f g h"}) {
    variables["ACCELERATE_CPP_STORE_SECRET"] = bad;
    expect_error<ConfigError>(
        [&] { static_cast<void>(read(variables)); },
        "but must have 16 to 256 random letters, digits, - and _");
  }
}

TEST(RankVariables, FollowMpi) {
  const RankVariables open_mpi = read(
      {{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(open_mpi.launcher, "Open MPI");
  EXPECT_EQ(open_mpi.rank, 1);
  const RankVariables mpich = read(
      {{"PMI_RANK", "1"},
       {"PMI_SIZE", "2"},
       {"MPI_LOCALRANKID", "1"},
       {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(mpich.launcher, "MPI");
  EXPECT_EQ(mpich.local_rank, 1);
}

TEST(RankVariables, FollowSlurm) {
  const RankVariables found = read(
      {{"SLURM_PROCID", "5"},
       {"SLURM_STEP_NUM_TASKS", "6"},
       {"SLURM_LOCALID", "1"},
       {"SLURM_NODEID", "2"},
       {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"},
       {"SLURM_STEP_NODELIST", "node[03-05]"}});
  EXPECT_EQ(found.launcher, "Slurm");
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.local_size, 2);
  EXPECT_EQ(found.address, "node03");
}

// The variables of rank 3 of a Slurm step with two tasks on each of two nodes.
const Variables kSlurmTask{
    {"SLURM_PROCID", "3"},
    {"SLURM_STEP_NUM_TASKS", "4"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "1"},
    {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
    {"SLURM_STEP_NODELIST", "node[03-04]"}};

Variables slurm_task_with(const Variables& others) {
  Variables all = kSlurmTask;
  for (const auto& [name, value] : others) all[name] = value;
  return all;
}

// Every library that srun starts for its tasks (--mpi=none, pmi2, pmix, Cray's),
// and variables that scripts derive from Slurm's.
TEST(RankVariables, OfOneRankFillEachOthersGaps) {
  const std::vector<Variables> beside{
      {},
      {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_JOBID", "77.0"}},
      {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_LOCAL_RANK", "1"}},
      {{"PMI_RANK", "3"},
       {"PMI_SIZE", "4"},
       {"MPI_LOCALRANKID", "1"},
       {"MPI_LOCALNRANKS", "2"}},
      {{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "slurm.pmix.77.0"}},
      {{"PALS_RANKID", "3"}, {"PALS_SIZE", "4"}, {"PALS_LOCAL_RANKID", "1"}},
      {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
      {{"MV2_COMM_WORLD_RANK", "3"},
       {"MV2_COMM_WORLD_SIZE", "4"},
       {"MV2_COMM_WORLD_LOCAL_RANK", "1"}},
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}},
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"PMI_RANK", "3"}},
      {{"WORLD_SIZE", "4"}},
      {{"RANK", "3"}}};
  for (const Variables& others : beside) {
    const RankVariables found = read(slurm_task_with(others));
    const std::string first =
        others.empty() ? std::string("none") : others.begin()->first;
    EXPECT_EQ(found.rank, 3) << first;
    EXPECT_EQ(found.size, 4) << first;
    EXPECT_EQ(found.local_rank, 1) << first;
    EXPECT_EQ(found.local_size, 2) << first;
    EXPECT_EQ(found.address, "node03") << first;
  }
}

TEST(RankVariables, OfAnotherRankFillNothing) {
  // mpirun inside of a step whose tasks are the nodes.
  const Variables inside{
      {"OMPI_COMM_WORLD_RANK", "6"},
      {"OMPI_COMM_WORLD_SIZE", "8"},
      {"MASTER_ADDR", "node03"}};
  const RankVariables found = read(slurm_task_with(inside));
  EXPECT_EQ(found.rank, 6);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.local_rank, 0);
  // The same number of ranks, in another order.
  Variables reordered{{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}};
  reordered["MASTER_ADDR"] = "node03";
  EXPECT_EQ(read(slurm_task_with(reordered)).local_rank, 0);
  EXPECT_EQ(read(slurm_task_with(reordered)).rank, 1);
}

TEST(RankVariables, OfPmixNeedANumberOfRanks) {
  expect_error<ConfigError>(
      [] { read({{"PMIX_RANK", "1"}}); }, "PMIX_RANK=1 is set but no variable");
  EXPECT_EQ(read({{"PMIX_RANK", "0"}}).size, 1);
  const RankVariables found =
      read({{"PMIX_RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}});
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.size, 2);
}

TEST(RankVariables, KnowTheFirstHostOfAList) {
  EXPECT_EQ(first_slurm_host("node[03-05,9],x7"), "node03");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("single"), "single");
}

TEST(RankVariables, RefuseContradictionsAllTogether) {
  const auto wrong = [] {
    read(
        {{"RANK", "4"},
         {"WORLD_SIZE", "2"},
         {"LOCAL_RANK", "0"},
         {"MASTER_PORT", "99999"}});
  };
  expect_error<ConfigError>(wrong, "RANK=4 but WORLD_SIZE=2");
  expect_error<ConfigError>(
      wrong, "MASTER_PORT must be a port from 0 to 65535, but is \"99999\"");
  expect_error<ConfigError>([] { read({{"RANK", "0"}}); }, "WORLD_SIZE is not");
  expect_error<ConfigError>(
      [] { read({{"RANK", "x"}, {"WORLD_SIZE", "2"}}); },
      "must be a rank or a number");
  expect_error<ConfigError>(
      [] {
        read(
            {{"RANK", "0"},
             {"WORLD_SIZE", "4"},
             {"OMPI_COMM_WORLD_RANK", "1"},
             {"OMPI_COMM_WORLD_SIZE", "2"}});
      },
      "contradict");
}

// Every contradiction is named once, with the variables that are set.
TEST(RankVariables, AreBlamedOnceAndByTheirOwnNames) {
  struct Case {
    Variables variables;
    std::string complaints;
  };
  const Case cases[] = {
      // Two families of MPI share the rank and the size.
      {{{"RANK", "0"},
        {"WORLD_SIZE", "4"},
        {"PMI_RANK", "1"},
        {"PMI_SIZE", "2"}},
       "[launch] RANK=0 and WORLD_SIZE=4 contradict PMI_RANK=1 and "
       "PMI_SIZE=2; unset the ones that are left over"},
      {{{"PMI_RANK", "x"}, {"PMI_SIZE", "2"}},
       "[launch] PMI_RANK must be a rank or a number of ranks, but is \"x\""},
      {{{"PMI_RANK", "1"},
        {"PMI_SIZE", "4"},
        {"PMI_LOCAL_RANK", "2"},
        {"PMI_LOCAL_SIZE", "2"}},
       "[launch] PMI_LOCAL_RANK=2 but PMI_LOCAL_SIZE=2; local ranks count "
       "from 0 to 1\n"
       "[launch] PMI_LOCAL_RANK=2 but PMI_RANK=1; a rank must be at least its "
       "local rank"},
      {{{"RANK", "1"},
        {"WORLD_SIZE", "4"},
        {"PMI_RANK", "1"},
        {"PMI_SIZE", "4"},
        {"PMI_LOCAL_RANK", "2"}},
       "[launch] PMI_LOCAL_RANK=2 but PMI_RANK=1; a rank must be at least its "
       "local rank"},
      {{{"RANK", "5"}, {"PMI_RANK", "5"}, {"PMI_SIZE", "4"}},
       "[launch] PMI_RANK=5 but PMI_SIZE=4; ranks count from 0 to 3"},
      {slurm_task_with({{"RANK", "3"}, {"LOCAL_RANK", "2"}}),
       "[launch] LOCAL_RANK=2 but SLURM_STEP_TASKS_PER_NODE=2; local ranks "
       "count from 0 to 1"}};
  for (const Case& each : cases) {
    try {
      static_cast<void>(read(each.variables));
      ADD_FAILURE() << "not refused: " << each.complaints;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.what(), each.complaints);
    }
  }
}

TEST(RankVariables, RefuseSageMakersDataParallelism) {
  try {
    static_cast<void>(read(
        {{"ACCELERATE_USE_SAGEMAKER", "true"},
         {"ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE", "DATA_PARALLEL"}}));
    ADD_FAILURE() << "not refused";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "[launch] ACCELERATE_USE_SAGEMAKER asks for SageMaker's data "
        "parallelism (smdistributed), which exists for Python alone; start the "
        "program with torchrun or mpirun there");
  }
  EXPECT_EQ(
      read({{"ACCELERATE_USE_SAGEMAKER", "true"},
            {"ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE", "NO"}})
          .size,
      1);
}

TEST(RankVariables, KnowWhichVariablesBelongToOneRank) {
  EXPECT_TRUE(is_rank_variable("OMPI_COMM_WORLD_LOCAL_RANK"));
  EXPECT_TRUE(is_rank_variable("TORCHELASTIC_RUN_ID"));
  EXPECT_FALSE(is_rank_variable("SLURM_JOB_ID"));
  EXPECT_FALSE(is_rank_variable("PATH"));
}

}  // namespace rank_variables_test
}  // namespace accelerate::detail
