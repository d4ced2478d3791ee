#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "trackers/files/run_files.h"
#include "trackers/http/http_client.h"
#include "trackers/mlflow/mlflow_store.h"

namespace accelerate::detail {

namespace {

using nlohmann::json;

json texts_json(std::span<const MlflowText> texts) {
  json result = json::array();
  for (const MlflowText& each : texts)
    result.push_back({{"key", each.key}, {"value", each.value}});
  return result;
}

/// Uses protocol buffers' spelling of numbers that JSON lacks.
json number_json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

HttpClientOptions server_options(
    std::string url,
    const Environment& environment) {
  while (url.ends_with('/')) url.pop_back();
  const auto text = [&](std::string_view name) {
    return environment.get(name).value_or("");
  };
  HttpClientOptions options;
  options.base = std::move(url);
  options.bearer_token = text("MLFLOW_TRACKING_TOKEN");
  options.user = text("MLFLOW_TRACKING_USERNAME");
  options.password = text("MLFLOW_TRACKING_PASSWORD");
  options.certificates = text("MLFLOW_TRACKING_SERVER_CERT_PATH");
  options.verifies_certificates =
      !parse_bool(text("MLFLOW_TRACKING_INSECURE_TLS")).value_or(false);
  options.timeout_seconds = parse_double(text("MLFLOW_HTTP_REQUEST_TIMEOUT"))
                                .value_or(options.timeout_seconds);
  options.most_retries =
      static_cast<int>(parse_int(text("MLFLOW_HTTP_REQUEST_MAX_RETRIES"))
                           .value_or(options.most_retries));
  options.backoff_factor =
      parse_double(text("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR"))
          .value_or(options.backoff_factor);
  return options;
}

/// MLflow's tracking server, through its REST interface.
class MlflowServer final : public MlflowStore {
 public:
  explicit MlflowServer(const HttpClientOptions& options)
      : url_(options.base), client_(options) {}

  void create_run(const MlflowExperiment& experiment, const MlflowNewRun& run)
      override {
    try {
      note_run(post(
          "runs/create",
          {{"experiment_id", experiment_id(experiment)},
           {"user_id", run.user},
           {"run_name", run.name},
           {"start_time", run.start_time},
           {"tags", texts_json(run.tags)}}));
    } catch (const json::exception&) {
      throw ConfigError(format(
          "[trackers] {} does not answer like an MLflow server; correct "
          "MLFLOW_TRACKING_URI",
          url_));
    }
  }
  void resume_run(const std::string& run_id, const std::string& name) override {
    const HttpAnswer found =
        client_.get("/api/2.0/mlflow/runs/get?run_id=" + url_escaped(run_id));
    if (found.status == 404) {
      throw ConfigError(format(
          "[trackers] there is no MLflow run {} on {}; correct MLFLOW_RUN_ID, "
          "run_id or MLFLOW_TRACKING_URI",
          printable(run_id),
          url_));
    }
    note_run(answer_of("runs/get", found));
    json body = {{"run_id", run_id_}, {"status", "RUNNING"}};
    if (!name.empty()) body["run_name"] = name;
    post("runs/update", body);
  }
  void log_params(std::span<const MlflowText> params) override {
    post(
        "runs/log-batch",
        {{"run_id", run_id_}, {"params", texts_json(params)}});
  }
  void set_tags(std::span<const MlflowText> tags) override {
    post("runs/log-batch", {{"run_id", run_id_}, {"tags", texts_json(tags)}});
  }
  void log_metrics(std::span<const MlflowMetric> metrics) override {
    json list = json::array();
    for (const MlflowMetric& each : metrics) {
      list.push_back(
          {{"key", each.key},
           {"value", number_json(each.value)},
           {"timestamp", each.timestamp},
           {"step", each.step}});
    }
    post("runs/log-batch", {{"run_id", run_id_}, {"metrics", std::move(list)}});
  }
  void write_artifact(const std::string& path, std::string_view contents)
      override {
    const std::string proxy = proxy_path(path);
    if (proxy.empty()) {
      write_run_file(mlflow_artifact_path(artifact_uri_, path), contents);
    } else {
      (void)answer_of("an artifact", client_.put(proxy, std::string(contents)));
    }
  }
  void copy_artifact(const std::string& path, const std::filesystem::path& file)
      override {
    const std::string proxy = proxy_path(path);
    if (proxy.empty()) {
      copy_run_file(file, mlflow_artifact_path(artifact_uri_, path));
    } else {
      (void)answer_of("an artifact", client_.put_file(proxy, file.string()));
    }
  }
  void end_run(std::int64_t end_time) override {
    post(
        "runs/update",
        {{"run_id", run_id_}, {"status", "FINISHED"}, {"end_time", end_time}});
  }
  [[nodiscard]] const std::string& run_id() const override { return run_id_; }

 private:
  json post(const std::string& what, const json& body) {
    return answer_of(
        what,
        client_.post_json(
            "/api/2.0/mlflow/" + what,
            body.dump(-1, ' ', true, json::error_handler_t::replace)));
  }
  json answer_of(const std::string& what, const HttpAnswer& answer) const {
    json body = json::parse(answer.body, nullptr, false);
    // A stored artifact is answered with an empty body.
    if (answer.status == 200 && answer.body.empty()) return json::object();
    if (answer.status == 200 && body.is_object()) return body;
    const std::string said = body.is_object() && body.contains("message")
        ? body["message"].dump()
        : answer.body;
    throw Error(format(
        "[trackers] the MLflow server {} answered {} with status {}: {}",
        url_,
        what,
        answer.status,
        printable(said)));
  }
  std::string experiment_id(const MlflowExperiment& experiment) {
    const HttpAnswer found = client_.get(
        "/api/2.0/mlflow/experiments/get-by-name?experiment_name=" +
        url_escaped(experiment.name));
    if (found.status != 404) {
      const json known = answer_of("experiments/get-by-name", found);
      const json& about = known.at("experiment");
      if (about.value("lifecycle_stage", "active") == "deleted") {
        throw ConfigError(format(
            "[trackers] MLflow's experiment \"{}\" was deleted; restore it "
            "(mlflow experiments restore), or choose another name",
            printable(experiment.name)));
      }
      return about.at("experiment_id").get<std::string>();
    }
    json body = {
        {"name", experiment.name}, {"tags", texts_json(experiment.tags)}};
    if (!experiment.artifact_location.empty())
      body["artifact_location"] = experiment.artifact_location;
    return post("experiments/create", body)
        .at("experiment_id")
        .get<std::string>();
  }
  /// Where the server accepts an artifact; empty if artifacts are stored
  /// elsewhere.
  [[nodiscard]] std::string proxy_path(const std::string& path) const {
    constexpr std::string_view kScheme = "mlflow-artifacts:/";
    if (!artifact_uri_.starts_with(kScheme)) return "";
    std::string_view below(artifact_uri_);
    below.remove_prefix(kScheme.size());
    if (below.starts_with('/')) {
      // mlflow-artifacts://HOST/PATH
      below.remove_prefix(1);
      const std::size_t slash = below.find('/');
      below.remove_prefix(
          slash == std::string_view::npos ? below.size() : slash + 1);
    }
    const auto whole = path_below(std::filesystem::path(below), path);
    return "/api/2.0/mlflow-artifacts/artifacts/" + url_escaped(whole.string());
  }
  void note_run(const json& answer) {
    const json& info = answer.at("run").at("info");
    run_id_ = info.at("run_id").get<std::string>();
    artifact_uri_ = info.value("artifact_uri", "");
  }

  std::string url_;
  HttpClient client_;
  std::string run_id_;
  std::string artifact_uri_;
};

}  // namespace

std::unique_ptr<MlflowStore> open_mlflow_server(
    const std::string& url,
    const Environment& environment,
    std::shared_ptr<const TrackerPatience> patience) {
  HttpClientOptions options = server_options(url, environment);
  options.patience = std::move(patience);
  return std::make_unique<MlflowServer>(options);
}

}  // namespace accelerate::detail
