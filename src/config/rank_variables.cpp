#include "config/rank_variables.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <optional>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

struct Family {
  std::string_view launcher;
  std::string_view rank;
  std::string_view size;
  std::string_view local_rank;
  std::string_view local_size;
};

// For Slurm, uses the number of tasks in the step: a batch script, which is a
// single process, has SLURM_PROCID as well.
// PMIx gives no number of ranks, so it only adds to another family.
constexpr std::array<Family, 8> kFamilies{{
    {"torch", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH",
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"PALS",
     "PALS_RANKID",
     "PALS_SIZE",
     "PALS_LOCAL_RANKID",
     "PALS_LOCAL_SIZE"},
    {"MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"MPI", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"},
    {"PMIx", "PMIX_RANK", "", "", ""},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
}};

struct Variable {
  std::string_view name;
  int value = 0;
};

struct Values {
  std::optional<Variable> rank, size, local_rank, local_size;
};

constexpr std::string_view kSlurmTasks = "SLURM_STEP_TASKS_PER_NODE";

class VariableReader {
 public:
  explicit VariableReader(const Environment& environment)
      : environment_(environment) {}

  Values read(const Family& family) {
    Values values{
        variable(family.rank),
        variable(family.size),
        variable(family.local_rank),
        variable(family.local_size)};
    if (family.launcher != "Slurm" || !values.size) return values;
    if (const auto local_size = slurm_local_size())
      values.local_size = Variable{kSlurmTasks, *local_size};
    return values;
  }

  std::optional<Variable> variable(std::string_view name) {
    const auto value = number(name);
    if (!value) return std::nullopt;
    return Variable{name, *value};
  }

  std::optional<int> number(std::string_view name) {
    const auto text = environment_.get(name);
    if (!text) return std::nullopt;
    const auto value = parse_int(*text);
    if (!value || *value < -1 || *value > 1'000'000'000) {
      complain(format(
          "{} must be a rank or a number of ranks, but is \"{}\"",
          name,
          *text));
      return std::nullopt;
    }
    // Some launchers write "unset" as -1.
    if (*value == -1) return std::nullopt;
    return static_cast<int>(*value);
  }

  // Families share variables: of equal complaints, one counts.
  void complain(const std::string& text) {
    const std::string complaint = "[launch] " + text;
    if (std::ranges::find(complaints_, complaint) == complaints_.end())
      complaints_.push_back(complaint);
  }
  [[nodiscard]] bool has_complaints() const { return !complaints_.empty(); }

  void finish() const {
    if (complaints_.empty()) return;
    throw ConfigError(join(complaints_, "\n"));
  }

 private:
  // Reads this node's entry of SLURM_STEP_TASKS_PER_NODE, such as "4(x2),3".
  std::optional<int> slurm_local_size() {
    const auto text = environment_.get(kSlurmTasks);
    if (!text) return std::nullopt;
    int node = number("SLURM_NODEID").value_or(0);
    for (const std::string& part : split(*text, ',')) {
      const std::size_t open = part.find("(x");
      const auto tasks = parse_int(part.substr(0, open));
      int repeats = 1;
      if (open != std::string::npos && part.back() == ')') {
        repeats = static_cast<int>(
            parse_int(part.substr(open + 2, part.size() - open - 3))
                .value_or(1));
      }
      if (!tasks) break;
      if (node < repeats) return static_cast<int>(*tasks);
      node -= repeats;
    }
    complain(
        format("{}=\"{}\" has no entry for this node", kSlurmTasks, *text));
    return std::nullopt;
  }

  const Environment& environment_;
  std::vector<std::string> complaints_;
};

// Complains about values that contradict each other.
void check(VariableReader& reader, const Values& values) {
  const auto& [rank, size, local_rank, local_size] = values;
  const auto complain =
      [&](const Variable& one, const Variable& other, const std::string& rule) {
        reader.complain(format(
            "{}={} but {}={}; {}",
            one.name,
            one.value,
            other.name,
            other.value,
            rule));
      };
  if (size && size->value < 1) {
    reader.complain(
        format("{} must be at least 1, but is {}", size->name, size->value));
    return;
  }
  if (rank && size && rank->value >= size->value) {
    complain(*rank, *size, format("ranks count from 0 to {}", size->value - 1));
  }
  if (local_size && size &&
      (local_size->value < 1 || local_size->value > size->value)) {
    complain(
        *local_size,
        *size,
        "a machine must have at least one and at most all of the ranks");
  }
  if (local_rank && local_size && local_rank->value >= local_size->value) {
    complain(
        *local_rank,
        *local_size,
        format("local ranks count from 0 to {}", local_size->value - 1));
  }
  if (local_rank && rank && local_rank->value > rank->value)
    complain(*local_rank, *rank, "a rank must be at least its local rank");
}

// Complains if the rank or the number of ranks is missing.
void require_both(
    VariableReader& reader,
    const Family& family,
    const Values& values) {
  const auto complain = [&](const Variable& found, std::string_view missing) {
    reader.complain(format(
        "{}={} is set but {} is not; set both, or start the program with "
        "accelerate-cpp launch",
        found.name,
        found.value,
        missing));
  };
  if (!values.size) {
    complain(*values.rank, family.size);
  } else if (!values.rank && values.size->value > 1) {
    complain(*values.size, family.rank);
  }
}

// torchrun and our launcher may run inside an MPI or Slurm job of a different
// size; RANK from any other source must agree with the job.
void check_against_job(
    VariableReader& reader,
    const Environment& environment,
    const Values& torch,
    const Values& job) {
  if (environment.has("TORCHELASTIC_RUN_ID") ||
      environment.has("ACCELERATE_CPP_CONFIG"))
    return;
  if (!job.rank || !job.size || !torch.rank || !torch.size) return;
  if (job.rank->value == torch.rank->value &&
      job.size->value == torch.size->value)
    return;
  reader.complain(format(
      "{}={} and {}={} contradict {}={} and {}={}; unset the ones that are "
      "left over",
      torch.rank->name,
      torch.rank->value,
      torch.size->name,
      torch.size->value,
      job.rank->name,
      job.rank->value,
      job.size->name,
      job.size->value));
}

std::optional<std::string> address_of(
    const Environment& environment,
    bool is_slurm_task) {
  if (auto address = environment.get("MASTER_ADDR")) return address;
  if (!is_slurm_task) return std::nullopt;
  for (const std::string_view name :
       {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto nodes = environment.get(name))
      return first_slurm_host(*nodes);
  }
  return std::nullopt;
}

// What a launcher and run_elastic() write for each other.
void read_elastic_variables(
    const Environment& environment,
    RankVariables& result) {
  const auto number = [&](const char* name, int otherwise) {
    const auto value = parse_int(environment.get(name).value_or(""));
    return value && *value >= 0 && *value <= std::numeric_limits<int>::max()
        ? static_cast<int>(*value)
        : otherwise;
  };
  result.board = environment.get(kBoardVariable).value_or("");
  result.board_page = number(kBoardPageVariable, result.local_rank);
  result.generation = number(kGenerationVariable, 0);
  result.first_generation = number(kFirstGenerationVariable, 1);
  result.memory_directory =
      environment.get(kMemoryDirectoryVariable).value_or("");
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
  const std::size_t end = node_list.find_first_of("[,");
  const std::string prefix = node_list.substr(0, end);
  if (end == std::string::npos || node_list[end] == ',') return prefix;
  const std::size_t stop = node_list.find_first_of(",-]", end + 1);
  return prefix + node_list.substr(end + 1, stop - end - 1);
}

bool is_rank_variable(std::string_view name) {
  for (const Family& family : kFamilies) {
    for (const std::string_view variable :
         {family.rank, family.size, family.local_rank, family.local_size}) {
      if (!variable.empty() && name == variable) return true;
    }
  }
  for (const std::string_view variable :
       {"GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
        "ACCELERATE_CPP_CONFIG",
        kStoreSecretVariable,
        kBoardVariable,
        kBoardPageVariable,
        kGenerationVariable,
        kFirstGenerationVariable,
        kMemoryDirectoryVariable}) {
    if (name == variable) return true;
  }
  return name.starts_with("TORCHELASTIC_");
}

namespace {

// The launcher whose variables count, and the values of all that describe the
// same rank.
struct ChosenFamily {
  const Family* family = nullptr;
  Values values = {};
  // Whether Slurm describes this rank, so that its list of nodes begins with
  // the host of rank 0.
  bool is_slurm_task = false;
};

bool describe_the_same_rank(const Values& one, const Values& other) {
  const auto agree = [](const auto& a, const auto& b) {
    return !a || !b || a->value == b->value;
  };
  return other.rank && agree(one.rank, other.rank) &&
      agree(one.size, other.size);
}

void fill_gaps(Values& values, const Values& other) {
  const auto fill = [](std::optional<Variable>& gap, const auto& variable) {
    if (!gap) gap = variable;
  };
  fill(values.rank, other.rank);
  fill(values.size, other.size);
  fill(values.local_rank, other.local_rank);
  fill(values.local_size, other.local_size);
}

// MPI libraries and Slurm export some of their variables outside jobs as well,
// so both are required.
bool is_present(const Family& family, const Values& found) {
  return family.launcher == "torch" ? found.rank || found.size
                                    : found.rank && found.size;
}

ChosenFamily choose_family(
    VariableReader& reader,
    const Environment& environment) {
  ChosenFamily chosen;
  std::optional<int> pmix_rank;
  for (const Family& family : kFamilies) {
    const Values found = reader.read(family);
    if (family.launcher == "PMIx" && found.rank) pmix_rank = found.rank->value;
    if (chosen.family == nullptr) {
      if (!is_present(family, found)) continue;
      chosen = {&family, found};
      check(reader, found);
    } else if (describe_the_same_rank(chosen.values, found)) {
      // srun with PMI gives the local rank and the nodes by Slurm's names only.
      if (found.size) check(reader, found);
      fill_gaps(chosen.values, found);
    } else if (chosen.family->launcher == "torch") {
      check_against_job(reader, environment, chosen.values, found);
      continue;
    } else {
      continue;
    }
    if (family.launcher == "Slurm") chosen.is_slurm_task = true;
  }
  if (chosen.family != nullptr) {
    // Values that are wrong by themselves would be reported twice.
    if (reader.has_complaints()) return chosen;
    require_both(reader, *chosen.family, chosen.values);
    check(reader, chosen.values);
  } else if (pmix_rank.value_or(0) > 0) {
    reader.complain(format(
        "PMIX_RANK={} is set but no variable gives the number of ranks; set "
        "WORLD_SIZE, or start the program with accelerate-cpp launch",
        *pmix_rank));
  }
  return chosen;
}

// Variables of a job that Accelerate started on SageMaker. A job of one process
// has the type NO.
bool uses_smdistributed(const Environment& environment) {
  return parse_bool(environment.get("ACCELERATE_USE_SAGEMAKER").value_or("no"))
             .value_or(false) &&
      environment.get("ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE").value_or("NO") !=
      "NO";
}

}  // namespace

RankVariables read_rank_variables(const Environment& environment) {
  VariableReader reader(environment);
  const auto [chosen, values, is_slurm_task] =
      choose_family(reader, environment);
  RankVariables result;
  if (const auto port = environment.get("MASTER_PORT")) {
    const auto number = parse_int(*port);
    if (number && *number >= 0 && *number <= 65535) {
      result.port = static_cast<int>(*number);
    } else {
      reader.complain(format(
          "MASTER_PORT must be a port from 0 to 65535, but is \"{}\"", *port));
    }
  }
  if (uses_smdistributed(environment)) {
    reader.complain(
        "ACCELERATE_USE_SAGEMAKER asks for SageMaker's data parallelism "
        "(smdistributed), which exists for Python alone; start the program "
        "with torchrun or mpirun there");
  }
  reader.finish();
  if (chosen == nullptr) return result;

  result.launcher = chosen->launcher;
  const auto value_or = [](const auto& variable, int otherwise) {
    return variable ? variable->value : otherwise;
  };
  result.size = values.size->value;
  result.rank = value_or(values.rank, 0);
  result.local_rank = value_or(values.local_rank, 0);
  read_elastic_variables(environment, result);
  // With a local rank but no local size, all ranks may be on this node. Without
  // either, every process is alone on its node, as Kubernetes operators start
  // it.
  result.local_size =
      value_or(values.local_size, values.local_rank ? result.size : 1);
  if (result.size == 1) return result;

  const auto address = address_of(environment, is_slurm_task);
  if (!address && result.local_size != result.size) {
    throw ConfigError(format(
        "[launch] {} started {} ranks, {} on this machine, but MASTER_ADDR is "
        "not set; set it to the host of rank 0",
        chosen->launcher,
        result.size,
        result.local_size));
  }
  result.address = address.value_or("127.0.0.1");
  result.agent_hosts_store =
      parse_bool(
          environment.get("TORCHELASTIC_USE_AGENT_STORE").value_or("false"))
          .value_or(false);
  result.store_prefix = read_store_secret(environment);
  if (const auto restarts = environment.get("TORCHELASTIC_RESTART_COUNT")) {
    const char* const separator = result.store_prefix.empty() ? "" : "/";
    result.store_prefix += format("{}attempt_{}", separator, *restarts);
  }
  if (result.generation > 1) {
    const char* const separator = result.store_prefix.empty() ? "" : "/";
    result.store_prefix +=
        format("{}generation_{}", separator, result.generation);
  }
  return result;
}

std::string read_store_secret(const Environment& environment) {
  constexpr std::size_t kFewest = 16, kMost = 256;
  const std::string secret = environment.get(kStoreSecretVariable).value_or("");
  const bool is_plain = std::ranges::all_of(secret, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
  if (secret.empty() ||
      (is_plain && secret.size() >= kFewest && secret.size() <= kMost)) {
    return secret;
  }
  throw ConfigError(format(
      "[launch] {} has {} characters{}, but must have {} to {} random letters, "
      "digits, - and _, for example those of `openssl rand -hex 16`",
      kStoreSecretVariable,
      secret.size(),
      is_plain ? "" : ", some of them other than letters, digits, - and _",
      kFewest,
      kMost));
}

}  // namespace accelerate::detail
