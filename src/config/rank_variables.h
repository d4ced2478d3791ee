#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/environment.h"

namespace accelerate::detail {

/// The variable with the secret of a launch. Launchers give it to their ranks;
/// a user may give one to the launchers of several machines.
inline constexpr const char* kStoreSecretVariable =
    "ACCELERATE_CPP_STORE_SECRET";

/// The variable with the ticket of the board on which a launcher's ranks note
/// what they do.
inline constexpr const char* kBoardVariable = "ACCELERATE_CPP_BOARD";

/// The rank of this process, the number of ranks, and the address at which rank
/// 0 listens.
struct RankVariables {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string address = "127.0.0.1";
  int port = 29500;
  /// The launcher that set the variables: "none", "torch", "Open MPI", "MPI",
  /// "Slurm" …
  std::string launcher = "none";
  /// True if torchrun's agent hosts the store: rank 0 connects as a client,
  /// too.
  bool agent_hosts_store = false;
  /// Prefix of every store key, so that a restarted group does not find keys of
  /// the old one, and that the launcher's store knows its ranks by the secret.
  std::string store_prefix;
  /// The ticket of the launcher's board; empty if it has none.
  std::string board;
};

/// Reads the variables of accelerate-cpp, torchrun, Accelerate, Kubernetes
/// training operators (RANK, WORLD_SIZE …), Open MPI, MVAPICH, Intel MPI and
/// MPICH, PALS, and Slurm steps, in this order; a single process if none is
/// set. Throws one ConfigError listing all variables that are missing, invalid
/// or contradictory.
RankVariables read_rank_variables(const Environment& environment);

/// Whether a launcher sets this variable per rank, so that a process that
/// starts its own ranks must not pass it on.
bool is_rank_variable(std::string_view name);

/// The secret of a launch that the environment has; empty if there is none.
/// Throws ConfigError for one that can be guessed or cannot be part of a key.
std::string read_store_secret(const Environment& environment);

/// The first host of a Slurm node list: "node[03-05,9],x7" gives "node03".
std::string first_slurm_host(const std::string& node_list);

}  // namespace accelerate::detail
