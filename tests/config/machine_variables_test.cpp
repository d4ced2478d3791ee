#include "config/machine_variables.h"

#include <gtest/gtest.h>

namespace accelerate::detail {
namespace machine_variables_test {

using Variables = std::map<std::string, std::string, std::less<>>;

std::map<std::string, std::string> read(const Variables& variables) {
  std::map<std::string, std::string> found;
  for (const auto& [key, entry] :
       source_from_scheduler(Environment(variables)).values) {
    found[key] = entry.first;
  }
  return found;
}

const Variables kSlurm{
    {"SLURM_JOB_ID", "77"},
    {"SLURM_STEP_ID", "2"},
    {"SLURM_STEP_NUM_NODES", "3"},
    {"SLURM_STEP_NUM_TASKS", "3"},
    {"SLURM_STEP_NODELIST", "gpu[04-05,9]"},
    {"SLURM_NODEID", "1"},
    {"SLURM_PROCID", "1"},
    {"SLURM_GPUS_ON_NODE", "4"}};

TEST(SchedulerSource, ReadsASlurmStepWithOneLauncherPerNode) {
  const std::map<std::string, std::string> expected{
      {"num_machines", "3"},
      {"machine_rank", "1"},
      {"main_process_ip", "gpu04"},
      {"main_process_port", "16234"},
      {"num_processes", "12"}};
  EXPECT_EQ(read(kSlurm), expected);
}

TEST(SchedulerSource, IgnoresSlurmStepsWithSeveralTasksPerNode) {
  Variables variables = kSlurm;
  variables.insert_or_assign("SLURM_STEP_NUM_TASKS", std::string("12"));
  EXPECT_TRUE(read(variables).empty());
  variables.insert_or_assign("SLURM_STEP_NUM_TASKS", std::string("1"));
  variables.insert_or_assign("SLURM_STEP_NUM_NODES", std::string("1"));
  EXPECT_TRUE(read(variables).empty());
}

TEST(SchedulerSource, IgnoresASlurmBatchScript) {
  EXPECT_TRUE(read({{"SLURM_JOB_ID", "77"},
                    {"SLURM_PROCID", "0"},
                    {"SLURM_NODEID", "0"},
                    {"SLURM_JOB_NUM_NODES", "3"}})
                  .empty());
}

TEST(SchedulerSource, ReadsTrainingOperators) {
  const std::map<std::string, std::string> expected{
      {"num_machines", "2"},
      {"machine_rank", "1"},
      {"main_process_ip", "job-master-0"},
      {"main_process_port", "23456"},
      {"num_processes", "16"}};
  Variables variables{
      {"PET_NNODES", "2"},
      {"PET_NODE_RANK", "1"},
      {"PET_NPROC_PER_NODE", "8"},
      {"PET_MASTER_ADDR", "job-master-0"},
      {"PET_MASTER_PORT", "23456"}};
  EXPECT_EQ(read(variables), expected);
  variables.erase("PET_NODE_RANK");
  variables.insert_or_assign("RANK", std::string("1"));
  EXPECT_EQ(read(variables), expected);
}

TEST(SchedulerSource, ReadsOpenMpiWithOneProcessPerNode) {
  const Variables one_each{
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  const std::map<std::string, std::string> expected{
      {"num_machines", "2"}, {"machine_rank", "1"}, {"num_processes", "2"}};
  EXPECT_EQ(read(one_each), expected);
  Variables several = one_each;
  several.insert_or_assign("OMPI_COMM_WORLD_LOCAL_SIZE", std::string("2"));
  EXPECT_TRUE(read(several).empty());
}

TEST(SchedulerSource, IsEmptyWithoutAScheduler) {
  EXPECT_TRUE(read({}).empty());
}

}  // namespace machine_variables_test
}  // namespace accelerate::detail
