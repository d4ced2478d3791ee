#pragma once

#include <string>
#include <string_view>

#include "config/environment.h"

namespace accelerate::detail {

/// The variable with the secret of a launch. Launchers pass it to their ranks;
/// a user may pass one to the launchers of several machines.
inline constexpr const char* kStoreSecretVariable =
    "ACCELERATE_CPP_STORE_SECRET";

/// The variable with the ticket of the board on which a launcher's ranks report
/// what they do.
inline constexpr const char* kBoardVariable = "ACCELERATE_CPP_BOARD";

/// In elastic groups (docs/guides/elastic.md): the generation in force, which
/// run_elastic() sets; the generation in which a process begins and its page on
/// the board, which the launcher sets; and a directory in memory for states.
inline constexpr const char* kGenerationVariable = "ACCELERATE_CPP_GENERATION";
inline constexpr const char* kFirstGenerationVariable =
    "ACCELERATE_CPP_FIRST_GENERATION";
inline constexpr const char* kBoardPageVariable = "ACCELERATE_CPP_BOARD_PAGE";
inline constexpr const char* kMemoryDirectoryVariable =
    "ACCELERATE_CPP_MEMORY_DIRECTORY";

/// The rank of this process, the number of ranks, and the address on which rank
/// 0 listens.
struct RankVariables {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string address = "127.0.0.1";
  int port = 29500;
  /// The launcher that set the variables: "none", "torch", "Open MPI", "MPI",
  /// "Slurm" ...
  std::string launcher = "none";
  /// True if torchrun's agent hosts the store, so that rank 0 connects as a
  /// client as well.
  bool agent_hosts_store = false;
  /// Prefix of every store key, so that a restarted group does not find the old
  /// group's keys, and the launcher's store recognises its ranks by the secret.
  std::string store_prefix;
  /// The ticket of the launcher's board; empty if it has none.
  std::string board;
  /// This process's page on the board.
  int board_page = 0;
  /// The generation of an elastic group, from 1; 0 outside run_elastic().
  int generation = 0;
  /// The generation in which this process begins; above 1 if it replaces a
  /// process that has ended, or joins a growing group.
  int first_generation = 1;
  /// Where the ranks of this machine may keep states in memory; empty if the
  /// launcher provides no directory.
  std::string memory_directory;
};

/// Reads the variables of accelerate-cpp, torchrun, Accelerate, Kubernetes
/// training operators (RANK, WORLD_SIZE ...), Open MPI, MVAPICH, Intel MPI and
/// MPICH (PMI), PALS, and Slurm steps, in this order; a single process if none
/// is set. Values that the first of them leaves out (the local rank, the host
/// of rank 0 ...) come from others that describe the same rank: srun with PMI-2
/// or PMIx sets PMI_RANK or PMIX_RANK beside Slurm's variables. Throws one
/// ConfigError listing all variables that are missing, invalid or
/// contradictory.
RankVariables read_rank_variables(const Environment& environment);

/// Whether launchers set this variable per rank, so that a process that starts
/// its own ranks must not pass it on.
bool is_rank_variable(std::string_view name);

/// The secret of a launch in the environment; empty if there is none. Throws
/// ConfigError for a secret that can be guessed or cannot be part of a key.
std::string read_store_secret(const Environment& environment);

/// The first host of a Slurm node list: "node[03-05,9],x7" gives "node03".
std::string first_slurm_host(const std::string& node_list);

}  // namespace accelerate::detail
