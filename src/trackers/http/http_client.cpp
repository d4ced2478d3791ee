#include "trackers/http/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <fcntl.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// The functions of libcurl that are used. A shared libcurl is loaded at the
// first request: it needs two dozen libraries, and loading them all would
// double the time that the command line tool takes to start.
struct CurlLibrary {
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_getinfo) easy_getinfo;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;
};

#ifdef ACCELERATE_CURL_SONAME

void* opened_libcurl() {
  void* const library = ::dlopen(ACCELERATE_CURL_SONAME, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(format(
        "[trackers] requests over HTTP need libcurl, which cannot be loaded: "
        "{}; install it",
        std::string_view(::dlerror())));
  }
  return library;
}

template <class Function>
void find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw Error(format(
        "[trackers] {} has no {}; install another version of libcurl",
        ACCELERATE_CURL_SONAME,
        name));
  }
}

// Never unloaded: its own threads and handlers may outlive any of ours.
CurlLibrary load_libcurl() {
  void* const library = opened_libcurl();
  CurlLibrary curl{};
  find_function(library, "curl_easy_init", curl.easy_init);
  find_function(library, "curl_easy_cleanup", curl.easy_cleanup);
  find_function(library, "curl_easy_reset", curl.easy_reset);
  find_function(library, "curl_easy_setopt", curl.easy_setopt);
  find_function(library, "curl_easy_perform", curl.easy_perform);
  find_function(library, "curl_easy_getinfo", curl.easy_getinfo);
  find_function(library, "curl_easy_strerror", curl.easy_strerror);
  find_function(library, "curl_slist_append", curl.slist_append);
  find_function(library, "curl_slist_free_all", curl.slist_free_all);
  return curl;
}

#else

CurlLibrary load_libcurl() {
  return {
      &curl_easy_init,
      &curl_easy_cleanup,
      &curl_easy_reset,
      &curl_easy_setopt,
      &curl_easy_perform,
      &curl_easy_getinfo,
      &curl_easy_strerror,
      &curl_slist_append,
      &curl_slist_free_all};
}

#endif

// Throws Error if libcurl cannot be loaded. Thread-safe.
const CurlLibrary& libcurl() {
  static const CurlLibrary library = load_libcurl();
  return library;
}

// A size that was not given to it ends the request.
std::size_t
append_body(char* bytes, std::size_t size, std::size_t count, void* body) {
  auto& text = *static_cast<std::string*>(body);
  if (size * count > kMostHttpAnswerBytes - text.size()) return 0;
  text.append(bytes, size * count);
  return size * count;
}

// Ends a request for which there is no patience left and in which nothing moves
// any more.
class Progress {
 public:
  explicit Progress(const TrackerPatience& patience) : patience_(patience) {}

  static int note(
      void* self,
      curl_off_t,
      curl_off_t num_received,
      curl_off_t,
      curl_off_t num_sent) {
    return static_cast<Progress*>(self)->note(num_received + num_sent) ? 0 : 1;
  }

 private:
  bool note(curl_off_t num_bytes) {
    const auto now = TrackerPatience::Clock::now();
    if (num_bytes != num_bytes_) since_ = now;
    num_bytes_ = num_bytes;
    return now - since_ < std::chrono::seconds(1) || !patience_.is_over();
  }

  const TrackerPatience& patience_;
  curl_off_t num_bytes_ = 0;
  TrackerPatience::Clock::time_point since_ = TrackerPatience::Clock::now();
};

bool may_pass(int status) {
  return status == 0 || status == 408 || status == 429 || status == 500 ||
      status == 502 || status == 503 || status == 504;
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

}  // namespace

std::string url_escaped(const std::string& text) {
  constexpr std::string_view kPlain = "-._~/";
  std::string result;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if ((byte < 0x80 && std::isalnum(byte) != 0) ||
        kPlain.find(letter) != std::string_view::npos) {
      result += letter;
    } else {
      char escape[4];
      std::snprintf(escape, sizeof escape, "%%%02X", byte);
      result += escape;
    }
  }
  return result;
}

HttpClient::HttpClient(Options options)
    : options_(std::move(options)), curl_(libcurl().easy_init()) {
  if (!curl_) throw Error("[trackers] libcurl cannot be used");
}

HttpClient::~HttpClient() { libcurl().easy_cleanup(curl_); }

HttpAnswer HttpClient::with_retries(
    const std::function<HttpAnswer()>& attempt) const {
  for (int retry = 0;; ++retry) {
    const HttpAnswer answer = attempt();
    if (!may_pass(answer.status)) return answer;
    if (retry < options_.most_retries && wait_before(retry)) continue;
    if (answer.status != 0) return answer;
    throw Error(
        format("[trackers] no answer from {}: {}", options_.base, answer.body));
  }
}

// Whether there is time for another attempt.
bool HttpClient::wait_before(int retry) const {
  constexpr double kLongest = 3600;
  const std::chrono::duration<double> pause(std::clamp(
      options_.backoff_factor * std::pow(2.0, retry), 0.0, kLongest));
  return options_.patience->pause(
      std::chrono::duration_cast<TrackerPatience::Clock::duration>(pause));
}

HttpAnswer HttpClient::perform(
    const std::string& path,
    const std::vector<std::string>& headers,
    const std::function<void(void*)>& prepare) {
  libcurl().easy_reset(curl_);
  HttpAnswer answer;
  const std::string url = options_.base + path;
  curl_slist* list = nullptr;
  for (const std::string& each : headers)
    list = libcurl().slist_append(list, each.c_str());
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> owner(
      list, libcurl().slist_free_all);
  char reason[CURL_ERROR_SIZE] = "";
  libcurl().easy_setopt(curl_, CURLOPT_URL, url.c_str());
  libcurl().easy_setopt(curl_, CURLOPT_NOSIGNAL, 1L);
  libcurl().easy_setopt(curl_, CURLOPT_ERRORBUFFER, reason);
  libcurl().easy_setopt(
      curl_,
      CURLOPT_TIMEOUT_MS,
      static_cast<long>(options_.timeout_seconds * 1000));
  libcurl().easy_setopt(curl_, CURLOPT_WRITEFUNCTION, &append_body);
  libcurl().easy_setopt(curl_, CURLOPT_WRITEDATA, &answer.body);
  Progress progress(*options_.patience);
  libcurl().easy_setopt(curl_, CURLOPT_NOPROGRESS, 0L);
  libcurl().easy_setopt(
      curl_,
      CURLOPT_XFERINFOFUNCTION,
      static_cast<curl_xferinfo_callback>(&Progress::note));
  libcurl().easy_setopt(curl_, CURLOPT_XFERINFODATA, &progress);
  libcurl().easy_setopt(curl_, CURLOPT_HTTPHEADER, list);
  if (!options_.bearer_token.empty()) {
    libcurl().easy_setopt(curl_, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    libcurl().easy_setopt(
        curl_, CURLOPT_XOAUTH2_BEARER, options_.bearer_token.c_str());
  } else if (!options_.user.empty()) {
    libcurl().easy_setopt(curl_, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
    libcurl().easy_setopt(curl_, CURLOPT_USERNAME, options_.user.c_str());
    libcurl().easy_setopt(curl_, CURLOPT_PASSWORD, options_.password.c_str());
  }
  if (!options_.certificates.empty())
    libcurl().easy_setopt(curl_, CURLOPT_CAINFO, options_.certificates.c_str());
  if (!options_.verifies_certificates) {
    libcurl().easy_setopt(curl_, CURLOPT_SSL_VERIFYPEER, 0L);
    libcurl().easy_setopt(curl_, CURLOPT_SSL_VERIFYHOST, 0L);
  }
  prepare(curl_);
  const CURLcode code = libcurl().easy_perform(curl_);
  long status = 0;
  libcurl().easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
  if (code == CURLE_WRITE_ERROR) {
    throw Error(format(
        "[trackers] {} answers with more than {} bytes",
        options_.base,
        kMostHttpAnswerBytes));
  }
  if (code == CURLE_OK) {
    answer.status = static_cast<int>(status);
  } else {
    answer.body = reason[0] != '\0' ? reason : libcurl().easy_strerror(code);
  }
  return answer;
}

HttpAnswer HttpClient::get(const std::string& path) {
  return with_retries([&] { return perform(path, {}, [](void*) {}); });
}

HttpAnswer HttpClient::post_json(
    const std::string& path,
    const std::string& body) {
  return with_retries([&] {
    return perform(path, {"Content-Type: application/json"}, [&](void* curl) {
      libcurl().easy_setopt(
          curl,
          CURLOPT_POSTFIELDSIZE_LARGE,
          static_cast<curl_off_t>(body.size()));
      libcurl().easy_setopt(curl, CURLOPT_POSTFIELDS, body.data());
    });
  });
}

HttpAnswer HttpClient::put(const std::string& path, const std::string& body) {
  return with_retries([&] {
    return perform(
        path, {"Content-Type: application/octet-stream"}, [&](void* curl) {
          libcurl().easy_setopt(
              curl,
              CURLOPT_POSTFIELDSIZE_LARGE,
              static_cast<curl_off_t>(body.size()));
          libcurl().easy_setopt(curl, CURLOPT_POSTFIELDS, body.data());
          libcurl().easy_setopt(curl, CURLOPT_CUSTOMREQUEST, "PUT");
        });
  });
}

HttpAnswer HttpClient::put_file(
    const std::string& path,
    const std::string& file) {
  return with_retries([&] {
    const File opened(
        ::fdopen(open_regular_file(file, O_RDONLY), "rb"), &std::fclose);
    if (!opened) throw Error(format("[trackers] cannot read {}", file));
    std::fseek(opened.get(), 0, SEEK_END);
    const auto size = static_cast<curl_off_t>(std::ftell(opened.get()));
    std::rewind(opened.get());
    return perform(
        path, {"Content-Type: application/octet-stream"}, [&](void* curl) {
          libcurl().easy_setopt(curl, CURLOPT_UPLOAD, 1L);
          libcurl().easy_setopt(curl, CURLOPT_READDATA, opened.get());
          libcurl().easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, size);
        });
  });
}

}  // namespace accelerate::detail
