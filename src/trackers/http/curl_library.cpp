#include "trackers/http/curl_library.h"

#ifdef ACCELERATE_CURL_SONAME
#include <dlfcn.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#endif

namespace accelerate::detail {

#ifdef ACCELERATE_CURL_SONAME

namespace {

void* opened() {
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
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw Error(format(
        "[trackers] {} has no {}; install another version of libcurl",
        ACCELERATE_CURL_SONAME,
        name));
  }
}

// Never unloaded: its own threads and handlers may outlive any of ours.
CurlLibrary load() {
  void* const library = opened();
  CurlLibrary curl{};
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_cleanup", curl.easy_cleanup);
  find(library, "curl_easy_reset", curl.easy_reset);
  find(library, "curl_easy_setopt", curl.easy_setopt);
  find(library, "curl_easy_perform", curl.easy_perform);
  find(library, "curl_easy_getinfo", curl.easy_getinfo);
  find(library, "curl_easy_strerror", curl.easy_strerror);
  find(library, "curl_slist_append", curl.slist_append);
  find(library, "curl_slist_free_all", curl.slist_free_all);
  return curl;
}

}  // namespace

#else

namespace {

CurlLibrary load() {
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

}  // namespace

#endif

const CurlLibrary& libcurl() {
  static const CurlLibrary library = load();
  return library;
}

}  // namespace accelerate::detail
